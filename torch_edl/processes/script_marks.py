"""Files by which the process of a script tells its node what an exit code does not.

The files are beside the error file that the launcher gave the process, so the node finds them
while the process runs and after any end.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torch_edl.config.environment import ENV_MASTER

_OPEN_LOOP = "open-loop"
_FAILING = "failing"


class ScriptMarks:
    """The files of this process; without a master, there are none.

    Exit code 0 alone does not show that a script came to its end: the code is the same after
    ``os._exit(0)`` in the middle of a loop over a loader, or if the script catches an error of the
    loop and ends. A process that fails may need seconds to end, and until then, the other processes
    would continue training.
    """

    def __init__(self) -> None:
        error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        marked = error_file and os.environ.get(ENV_MASTER)
        self._beside = Path(error_file) if marked else None

    def begin_loop(self) -> None:
        """Record that a loop begins."""
        self._write(_OPEN_LOOP)

    def fail_loop(self, error: BaseException) -> None:
        """Record the error that ended the loop."""
        self._write(_OPEN_LOOP, f"{type(error).__name__}: {error}")

    def end_loop(self) -> None:
        """Record that the loop is over, or that the script left it."""
        if self._beside is not None:
            self._beside.with_name(_OPEN_LOOP).unlink(missing_ok=True)

    def fail(self) -> None:
        """Record that the process will end with an exit code other than 0."""
        self._write(_FAILING)

    def _write(self, name: str, text: str = "") -> None:
        if self._beside is not None:
            # On a full disk, a script that ends in its loop with exit code 0 is not noticed.
            with contextlib.suppress(OSError):
                self._beside.with_name(name).write_text(text, encoding="utf-8")


def open_loop(error_file: str) -> str | None:
    """Return how a process left its loop open: the error that ended the loop, or an empty string;
    None if the process is in no loop.

    Args:
        error_file: path of the error file of the process.
    """
    try:
        file = Path(error_file).with_name(_OPEN_LOOP)
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def is_failing(error_file: str) -> bool:
    """Return True if the process with that error file will end with an exit code other than 0."""
    return Path(error_file).with_name(_FAILING).exists()

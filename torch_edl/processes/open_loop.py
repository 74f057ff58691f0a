"""A file that exists while the script of a process is in a loop over a loader.

Exit code 0 alone does not show that a script came to its end: ``os._exit(0)`` in the middle of a
loop, or a script that catches an error of the loop and ends, has the same code. The file is beside
the error file that the launcher gave the process, so the agent finds it after any end.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torch_edl.config.environment import ENV_MASTER

_NAME = "open-loop"


class OpenLoop:
    """The mark of this process; without a master, there is none."""

    def __init__(self) -> None:
        error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        marked = error_file and os.environ.get(ENV_MASTER)
        self._file = Path(error_file).with_name(_NAME) if marked else None

    def begin(self) -> None:
        """Record that a loop begins."""
        self._write("")

    def fail(self, error: BaseException) -> None:
        """Record the error that ended the loop."""
        self._write(f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """Record that the loop is over, or that the script left it."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        if self._file is not None:
            # On a full disk, only a script that ends in its loop with exit code 0 is not noticed.
            with contextlib.suppress(OSError):
                self._file.write_text(text, encoding="utf-8")


def left_open(error_file: str) -> str | None:
    """Return how a process left its loop open: the error that ended the loop, or an empty string;
    None if the process was in no loop.

    Args:
        error_file: path of the error file of the process.
    """
    try:
        return Path(error_file).with_name(_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None

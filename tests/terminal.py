"""A real terminal of a process: what the process writes to it, and keys that a user types."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Self

from tests.waiting import HANG_S

# The terminal is that of the process and of its children: Ctrl-C reaches them.
_LOGIN = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A command on a terminal of 30 lines and 100 columns.

    Args:
        env: variables of the command beside those of this process.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.text = ""
        """What was written so far, with escape sequences."""
        self._file, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        both = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        both.pop("COLUMNS", None)
        both.pop("NO_COLOR", None)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LOGIN, *command], env=both,
                stdin=theirs, stdout=theirs, stderr=theirs,
            )  # fmt: skip
        finally:
            os.close(theirs)

    def type(self, keys: str) -> None:
        """Types keys: ``\\x03`` is Ctrl-C, ``\\t`` the key Tab."""
        os.write(self._file, keys.encode())

    def read_until(self, text: str, times: int = 1) -> None:
        """Waits until a text was written a number of times."""
        end = time.monotonic() + HANG_S
        while self.text.count(text) < times:
            assert self._read(end), f"{text!r} was not written in:\n{self.text}"

    def finish(self) -> int:
        """Reads to the end, and returns the exit code."""
        end = time.monotonic() + HANG_S
        while self._read(end):
            pass
        return self.process.wait(HANG_S)

    def _read(self, end: float) -> bool:
        """Reads a piece; False at the end of the process or of the time."""
        readable, _, _ = select.select([self._file], [], [], max(0.0, end - time.monotonic()))
        if not readable:
            return False
        piece = b""
        with contextlib.suppress(OSError):  # how Linux tells that nobody has the terminal open
            piece = os.read(self._file, 1 << 16)
        self.text += piece.decode(errors="replace")
        return bool(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._file)

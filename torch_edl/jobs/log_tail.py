"""Logs that grow, read line by line, and the lines of them that a terminal shows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

_OURS = re.compile(
    r"\d\d:\d\d:\d\d\.\d{3} [a-z]+-\d+ (?P<level>[A-Z]+) (?P<logger>[\w.]+): (?P<text>.*)"
)
# Of gRPC's C++ core, informative lines and the remark that precedes its first one.
_CORE = re.compile(r"I\d{4} \d\d:\d\d:[\d.]+ |WARNING: All log messages before absl::")
_LAYERS = "torch_edl.layers"
# The master reports failed tasks, with the count of failures.
_TOLD_BY_MASTER = ("torch_edl.trainer.one_off", "ERROR")
_CHUNK_BYTES = 256 * 1024


def is_chatter(line: str) -> bool:
    """Whether the line is an informative one of gRPC's core."""
    return _CORE.match(line) is not None


def shown(line: str, *, own: bool = True) -> str | None:
    """The line as the terminal shows it; None if it stays in the file.

    What the user's code prints is shown as it is. Of our own log lines, warnings, errors and the
    statistics of ``--log-layers`` are, unless ``own`` is false.
    """
    ours = _OURS.match(line)
    if ours is None:
        return None if is_chatter(line) or not line.strip() else line
    level, logger, text = ours["level"], ours["logger"], ours["text"]
    is_own = logger.split(".")[0] in ("torch_edl", "master", "__main__", "root")
    if (is_own and not own) or (logger, level) == _TOLD_BY_MASTER:
        return None
    if level in ("INFO", "DEBUG"):
        return text if logger == _LAYERS or not is_own else None
    return f"{level.lower()}: {text}"


class WholeLines:
    """The lines of a file that grows, each when it is whole."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._position = 0
        self._rest = b""

    def read(self, *, final: bool = False) -> list[bytes]:
        """Some new lines, without their ends; with ``final`` all, an unfinished one too. A file
        that does not exist has no lines."""
        lines: list[bytes] = []
        for some in self._chunks():
            lines += some
            if not final:
                break
        if final and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def read_all(self, *, final: bool = False) -> Iterator[bytes]:
        """All new lines as :meth:`read` returns them, of which only a part is in memory."""
        for some in self._chunks():
            yield from some
        if final and self._rest:
            yield self._rest
            self._rest = b""

    def _chunks(self) -> Iterator[list[bytes]]:
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._position)
            while chunk := file.read(_CHUNK_BYTES):
                self._position += len(chunk)
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                yield whole


class LogTail:
    """The growing log of one process."""

    def __init__(self, path: str) -> None:
        self._lines = WholeLines(path)

    def read(self, *, final: bool = False, own: bool = True) -> list[str]:
        """New whole lines that are to be shown; with ``final`` all that is left, unfinished too.

        Without ``own``, only what the user's code printed or logged.
        """
        texts = (text_of(raw) for raw in self._lines.read(final=final))
        return [line for text in texts if (line := shown(text, own=own)) is not None]


def text_of(raw: bytes) -> str:
    """A line as a terminal would leave it."""
    # A bar that redraws itself ends each state with a return; the last state counts.
    return raw.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def last_error(path: str | Path) -> str:
    """The text of the last error that one of our processes logged; empty if there is none."""
    for line in reversed(last_lines(path, 50).split("\n")):
        ours = _OURS.match(line)
        if ours is not None and ours["level"] == "ERROR":
            return ours["text"]
    return ""


def text_of_line(line: str) -> str:
    """What a line of a log says, without the time and the name of the process that logged it."""
    ours = _OURS.match(line)
    return line if ours is None else ours["text"]


def last_lines(path: str | Path, count: int) -> str:
    """The end of a log, for an error message."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip("\n").split("\n")[-count:])

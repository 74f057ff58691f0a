"""Read growing logs line by line, and select the lines to show in a terminal."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

_OURS = re.compile(
    r"\d\d:\d\d:\d\d\.\d{3} [a-z]+-\d+ (?P<level>[A-Z]+) (?P<logger>[\w.]+): (?P<text>.*)"
)
# Informative lines of gRPC's C++ core, and the warning before the first of them.
_CORE = re.compile(r"I\d{4} \d\d:\d\d:[\d.]+ |WARNING: All log messages before absl::")
_LAYERS = "torch_edl.layers"
# Failed tasks are shown by the master, with the number of failures.
_TOLD_BY_MASTER = ("torch_edl.training.one_off", "ERROR")
_CHUNK_BYTES = 256 * 1024


def is_chatter(line: str) -> bool:
    """Return True for an informative line of gRPC's core."""
    return _CORE.match(line) is not None


def shown(line: str, *, own: bool = True) -> str | None:
    """Return the text to show in a terminal for a line; None to hide the line.

    Output of the user's code is shown unchanged. Of the log lines of torch-edl, warnings, errors
    and the statistics of ``--log-layers`` are shown, unless ``own`` is False.
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
    """The complete lines of a growing file."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._position = 0
        self._rest = b""

    def read(self, *, final: bool = False) -> list[bytes]:
        """Return some new lines without line ends; empty if the file does not exist.

        Args:
            final: return all new lines, including an incomplete last line.
        """
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
        """Yield all new lines as :meth:`read` returns them, with only a part in memory."""
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
        """Return the new complete lines to show.

        Args:
            final: return all remaining lines, including an incomplete last line.
            own: False to return only output of the user's code.
        """
        texts = (text_of(raw) for raw in self._lines.read(final=final))
        return [line for text in texts if (line := shown(text, own=own)) is not None]


def text_of(raw: bytes) -> str:
    """Decode a line as it would remain in a terminal."""
    # A progress bar ends each state with a carriage return; the last state remains.
    return raw.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def last_error(path: str | Path) -> str:
    """Return the last error that a torch-edl process logged; empty if there is none."""
    for line in reversed(last_lines(path, 50).split("\n")):
        ours = _OURS.match(line)
        if ours is not None and ours["level"] == "ERROR":
            return ours["text"]
    return ""


def text_of_line(line: str) -> str:
    """Return the message of a log line, without the time and process name."""
    ours = _OURS.match(line)
    return line if ours is None else ours["text"]


def last_lines(path: str | Path, count: int) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip("\n").split("\n")[-count:])

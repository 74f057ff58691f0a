"""The logs of a job of this machine: growing files that are read line by line, and the lines to
show in a terminal."""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import LogQuery
from torch_edl.launch.jobs.folder import ENDED, JobFolder
from torch_edl.wire import event_messages

_OURS = re.compile(
    r"\d\d:\d\d:\d\d\.\d{3} [a-z]+-\d+ (?P<level>[A-Z]+) (?P<logger>[\w.]+): (?P<text>.*)"
)
# Informative lines of gRPC's C++ core, and the warning before the first of them.
_CORE = re.compile(r"I\d{4} \d\d:\d\d:[\d.]+ |WARNING: All log messages before absl::")
# C++ stacks below the reports of torch's process groups, about 30 lines for a lost member.
_STACK = re.compile(
    r"Exception raised from \w+ at \S*/c10d/\S+ \(most recent call first\):"
    r"|frame #\d+: .* \(0x[0-9a-f]+ in .*\)$"
    r"|<omitting python frames>$"
)
# Such a report, after the time (which older versions of torch leave out).
_GROUP = re.compile(
    r"(\[rank\d+\]:)?\[[IWE][\d:. ]*(ProcessGroup\w*|NCCLUtils|TCPStore\w*|socket)\.[ch]pp:\d+\] "
)
_LAYERS = "torch_edl.layers"
# Failed tasks are shown by the master, with the number of failures.
_TOLD_BY_MASTER = ("torch_edl.training.one_off", "ERROR")
_CHUNK_BYTES = 256 * 1024
_EVENTS = "events"
_ROLES = ("master", "ps", "worker")
_POLL_S = 0.2
_LOOK_EVERY_S = 1.0
_TRACEBACK = b"Traceback (most recent call last):"  # torch prints the rank before it
# A traceback is over if nothing was written for this time, and is held back no longer than that.
_QUIET_S = 0.25
_LONGEST_HOLD_S = 0.8

_Write = Callable[[str, str], None]


def is_chatter(line: str) -> bool:
    """Return True for an informative line of gRPC's core, or a C++ stack of torch's process
    groups."""
    return any(kind.match(line) for kind in (_CORE, _STACK))


def shown(line: str, *, own: bool = True) -> str | None:
    """Return the text to show in a terminal for a line; None to hide the line.

    Output of the user's code is shown unchanged. Of the log lines of torch-edl, warnings, errors
    and the statistics of ``--log-layers`` are shown, unless ``own`` is False. Reports of torch's
    process groups are hidden: torch-edl logs why a ring broke.
    """
    ours = _OURS.match(line)
    if ours is None:
        is_hidden = is_chatter(line) or _GROUP.match(line) or not line.strip()
        return None if is_hidden else line
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
        self.path = Path(path)
        self._position = 0
        self._rest = b""

    def read(self, *, final: bool = False) -> list[bytes]:
        """Return some new lines without line ends; empty if the file does not exist.

        Args:
            final: return all new lines, including an incomplete last line.
        """
        return list(self.read_all(final=True)) if final else next(self._chunks(), [])

    def read_all(self, *, final: bool) -> Iterator[bytes]:
        """Yield all new lines as :meth:`read` returns them, with only a part in memory."""
        for some in self._chunks():
            yield from some
        if final and self._rest:
            yield self._rest
            self._rest = b""

    def _chunks(self) -> Iterator[list[bytes]]:
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            file.seek(self._position)
            while chunk := file.read(_CHUNK_BYTES):
                self._position += len(chunk)
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                yield whole


class WholeTracebacks:
    """Holds back the lines of a file while a traceback is written to it, so that the tracebacks of
    several processes are shown one after the other.

    A process writes a traceback line by line, and other exceptions may follow as its cause. The
    lines are therefore held back until the file has not grown for a moment.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._began = self._grew = 0.0

    def pass_on(self, lines: list[bytes], *, final: bool, now: float) -> list[bytes]:
        """Return the lines to show now.

        Args:
            lines: new lines of the file; empty if there are none.
            final: hold nothing back.
            now: monotonic time in seconds.
        """
        before: list[bytes] = []
        if not self._held:
            begins = (i for i, line in enumerate(lines) if _TRACEBACK in line)
            begin = next(begins, len(lines))
            before, lines = lines[:begin], lines[begin:]
            self._began = now
        if lines:
            self._held += lines
            self._grew = now
        if final or now - self._grew >= _QUIET_S or now - self._began >= _LONGEST_HOLD_S:
            before, self._held = before + self._held, []
        return before


def shown_lines(lines: WholeLines, *, final: bool = False, own: bool = True) -> list[str]:
    """Return the new complete lines to show, see :func:`shown`; with an incomplete last line if
    ``final``."""
    texts = (text_of(raw) for raw in lines.read(final=final))
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


def read(
    job: JobFolder,
    report: Callable[[], dict[str, Any]],
    query: LogQuery,
    write: _Write,
) -> None:
    """Read the logs of a job; see :meth:`torch_edl.interfaces.platform.JobHandle.read_logs`.

    Args:
        report: returns the status of the job as plain data.
    """
    logs: dict[Path, tuple[str, WholeLines]] = {}
    tail, over = query.tail, False
    while not over:
        found = report()
        # Read the logs once more after the end was observed, for lines written in between.
        over = not query.follow or found["state"] in (*ENDED, "dead")
        # Events come last because they tell how the job ended, and a terminal shows the last lines.
        for name, path in _logs(job, found, query.role, query.id):
            logs.setdefault(path, (name, WholeLines(path)))
        if not logs and not query.follow:
            raise UsageError(_no_such_log(job, found, query))
        until = time.monotonic() + (0 if over else _LOOK_EVERY_S)
        while True:
            for name, lines in logs.values():
                _write_lines(name, lines, write, tail=tail, final=over)
            tail = None
            if time.monotonic() >= until:
                break
            time.sleep(_POLL_S)


def _write_lines(
    name: str, lines: WholeLines, write: _Write, *, tail: int | None, final: bool
) -> None:
    new: Iterable[bytes] = lines.read_all(final=final)
    for raw in new if tail is None else deque(new, maxlen=tail):
        line = raw.rstrip(b"\r").decode("utf-8", "replace")
        for each in _event_lines(line) if name == _EVENTS else (line,):
            write(name, each)


def _event_lines(line: str) -> list[str]:
    try:
        message = event_messages.from_line(line)
    except ValueError:
        return [line]  # truncated by a full disk
    if message.level == "debug":
        return []
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message.time))
    mark = "" if message.level == "info" else f"{message.level}: "
    trace = event_messages.from_message(message).traceback.rstrip("\n")
    return [f"{clock} {mark}{message.text}", *(trace.split("\n") if trace else ())]


def _logs(
    job: JobFolder, found: dict[str, Any], role: str, id: int | None
) -> list[tuple[str, Path]]:
    """Return names and files of the logs that match; two for a process with separate streams."""
    paths = {(p["role"], p["id"]): Path(p["log"]) for p in found["processes"] if p.get("log")}
    for file in job.logs.glob("*-*.log"):  # the job may have no status yet
        name, _, number = file.stem.rpartition("-")
        if number.isdecimal() and file not in paths.values():
            paths.setdefault((name, int(number)), file)
    logs = [
        (f"{name}-{number}", file)
        for (name, number), path in sorted(paths.items(), key=_order)
        if role in ("", name) and id in (None, number)
        for file in _streams(path)
        if file.exists()
    ]
    if role in ("", _EVENTS) and job.events_file.exists():
        logs.append((_EVENTS, job.events_file))
    return logs


def _streams(path: Path) -> list[Path]:
    """Return the files of a process; torchrun's launchers write stdout and stderr to two files."""
    return [path] if path.name != "stderr.log" else [path.with_name("stdout.log"), path]


def _order(log: tuple[tuple[str, int], Path]) -> tuple[int, str, int]:
    (role, id), _ = log
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES), role, id)


def _no_such_log(job: JobFolder, found: dict[str, Any], query: LogQuery) -> str:
    asked = f"{query.role}-{query.id}" if query.id is not None else query.role
    names = dict.fromkeys(name for name, _ in _logs(job, found, "", None))
    there = ", ".join(names) or "none"
    return f"{job.name}: no log of {asked or 'any process'} on this machine; there is {there}"

"""Reads the events of a job of this machine and the output of its processes."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import LogQuery
from torch_edl.launch.jobs.folder import ENDED, JobFolder
from torch_edl.launch.jobs.log_tail import WholeLines
from torch_edl.launch.jobs.status import report

_EVENTS = "events"
_ROLES = ("master", "ps", "worker", "spare")
_POLL_S = 0.2
_LOOK_EVERY_S = 1.0

Write = Callable[[str, str], None]


def read(job: JobFolder, query: LogQuery, write: Write) -> None:
    """Read the logs of a job; see :meth:`torch_edl.interfaces.platform.JobHandle.read_logs`."""
    logs: list[_Log] = []
    tail, over = query.tail, False
    while not over:
        found = report(job)
        # Read the logs once more after the end was observed, for lines written in between.
        over = not query.follow or found["state"] in (*ENDED, "dead")
        known = {log.path for log in logs}
        # Events come last because they tell how the job ended, and a terminal shows the last lines.
        logs += [log for log in _logs(job, found, query.role, query.id) if log.path not in known]
        if not logs and not query.follow:
            raise UsageError(_no_such_log(job, found, query))
        until = time.monotonic() + (0 if over else _LOOK_EVERY_S)
        while True:
            for log in logs:
                log.read(write, tail=tail, final=over)
            tail = None
            if time.monotonic() >= until:
                break
            time.sleep(_POLL_S)


class _Log:
    """A growing file that is read in whole lines."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._lines = WholeLines(path)

    def read(self, write: Write, *, tail: int | None = None, final: bool = False) -> None:
        """Pass new lines to a function.

        Args:
            tail: number of lines to read; earlier lines are skipped. None: all.
            final: True: an unfinished last line is read too.
        """
        lines: Iterable[bytes] = self._lines.read_all(final=final)
        for raw in lines if tail is None else deque(lines, maxlen=tail):
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            for shown in _event_lines(line) if self.name == _EVENTS else (line,):
                write(self.name, shown)


def _event_lines(line: str) -> list[str]:
    try:
        event = json.loads(line)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
        mark = "" if event["level"] == "info" else f"{event['level']}: "
        trace = str(event.get("traceback", "")).rstrip("\n")
        return [f"{clock} {mark}{event['text']}", *(trace.split("\n") if trace else ())]
    except (ValueError, KeyError, TypeError):
        return [line]  # truncated by a full disk


def _logs(job: JobFolder, found: dict[str, Any], role: str, id: int | None) -> list[_Log]:
    """Return the logs that match and exist; two for a process with separate streams."""
    paths = {(p["role"], p["id"]): Path(p["log"]) for p in found["processes"] if p.get("log")}
    for file in job.logs.glob("*-*.log"):  # the job may have no status yet
        name, _, number = file.stem.rpartition("-")
        if number.isdecimal() and file not in paths.values():
            paths.setdefault((name, int(number)), file)
    logs = [
        _Log(f"{name}-{number}", file)
        for (name, number), path in sorted(paths.items(), key=_order)
        if role in ("", name) and id in (None, number)
        for file in _streams(path)
        if file.exists()
    ]
    if role in ("", _EVENTS) and job.events_file.exists():
        logs.append(_Log(_EVENTS, job.events_file))
    return logs


def _streams(path: Path) -> list[Path]:
    """Return the files of a process; torchrun's launchers write stdout and stderr to two files."""
    return [path] if path.name != "stderr.log" else [path.with_name("stdout.log"), path]


def _order(log: tuple[tuple[str, int], Path]) -> tuple[int, str, int]:
    (role, id), _ = log
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES), role, id)


def _no_such_log(job: JobFolder, found: dict[str, Any], query: LogQuery) -> str:
    asked = f"{query.role}-{query.id}" if query.id is not None else query.role
    names = dict.fromkeys(log.name for log in _logs(job, found, "", None))
    there = ", ".join(names) or "none"
    return f"{job.name}: no log of {asked or 'any process'} on this machine; there is {there}"

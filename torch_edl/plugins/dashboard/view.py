"""A job as the page shows it: read only while a browser asks, at most once a second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.errors import EdlError
from torch_edl.events import Loss, ModelRestored, ProcessChanged, WorkerWaited
from torch_edl.interfaces.platform import JobHandle, LogQuery
from torch_edl.launch.jobs.folder import ENDED
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.launch.jobs.logs import WholeLines, last_lines
from torch_edl.launch.jobs.status import as_dict
from torch_edl.plugins.dashboard import events, incidents
from torch_edl.plugins.dashboard.lanes import EXITED, Lanes
from torch_edl.plugins.dashboard.machines import Machines
from torch_edl.plugins.dashboard.samples import History, Samples, of_status
from torch_edl.plugins.dashboard.servers import ServerLoads, TableChanges, tables
from torch_edl.wire import master_pb2 as pb

_EVERY_S = 0.9
_EVERY_AFTER_END_S = 5.0
_LOG_LINES = 500
_LINE_CHARS = 2000
_MOST_ENDED = 300
_MOST_TABLES = 100
# A part of this size has a successor; a history has a few megabytes.
_FULL_BYTES = 1 << 20
_LEFT = 1  # stands for the file of a job that is over
_ROLES = ("master", "ps", "worker", "spare")
_OVER = (*ENDED, "dead")


class View:
    """What the page shows of a job, and the calls that keep it new.

    Args:
        clock: returns the Unix time in seconds.
    """

    def __init__(self, job: JobHandle, clock: Callable[[], float] = time.time) -> None:
        self._job = job
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._generation = 0
        self._begin(job.started())

    def _begin(self, started: float) -> None:
        """Forget everything: the job, or a new one of the same name, started at another time."""
        self._started = started
        self._generation += 1
        self._report: dict[str, Any] = {}
        self._problem = ""
        self._rates: dict[tuple[str, int], tuple[float, int, float | None]] = {}
        self.book = events.EventBook()
        self.samples = Samples()
        self.lanes = Lanes()
        local = self._job if isinstance(self._job, LocalJob) else None
        self._events_file = WholeLines(local.events_file) if local else None
        self._history = History(local.history_file if local else None)
        self._closed = False
        self._recalled: bool | None = None  # whether the job was over when what it left was read
        self._config: JobConfig | None = None
        self._loads = ServerLoads()
        self._tables: list[dict[str, Any]] = []
        self._changes = TableChanges()
        self._machines = Machines()

    # ---- reading ----

    def refresh(self, *, frequent_ids: bool = False) -> None:
        """Read what is new, unless the last read is younger than a second.

        Args:
            frequent_ids: ask the servers for the most frequent ids of their tables, which the
                statuses of the next seconds have.
        """
        with self._lock:
            over = self._report.get("state") in _OVER
            if self._clock() - self._read_at < (_EVERY_AFTER_END_S if over else _EVERY_S):
                return
            try:
                self._read(frequent_ids=frequent_ids)
            finally:
                self._read_at = self._clock()

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        with self._lock:
            return self._report.get("state") in _OVER

    def lacks_frequent_ids(self) -> bool:
        """Return whether the job runs and has tables, and no server has sent their ids."""
        with self._lock:
            over = self._report.get("state") in _OVER
            return bool(self._tables) and not over and not any(t["frequent"] for t in self._tables)

    def _read(self, *, frequent_ids: bool) -> None:
        started = self._job.started()
        if started and started != self._started:
            self._begin(started)
        try:
            status: pb.GetStatusResponse | None = self._job.ask(
                pb.GetStatusRequest(
                    events_after=self.book.last,
                    frequent_ids=frequent_ids,
                    history_after=self._history.after,
                )
            )
            self._problem = ""
        except EdlError as error:
            status, self._problem = None, str(error)
        now = self._clock()
        if status is not None:
            self._report = as_dict(status)
        else:
            try:
                self._report = self._job.report()
            except EdlError as error:
                self._problem = str(error)
        if self._report.get("state") in _OVER:
            self._problem = ""
        if self._config is None:
            with contextlib.suppress(EdlError):
                self._config = self._job.config()
        if self._events_file is not None:
            self._add(events.parse(self._events_file.read_all(final=False)))
        else:
            recalled = self._recall(status)
            new = {each.sequence: each for each in recalled}
            new |= {each.sequence: each for each in (status.events if status is not None else ())}
            self._add(new[sequence] for sequence in sorted(new))
        kept = self._history.read(self.samples)
        if status is not None and self._events_file is None:
            kept = self._take_history(status)
        self._note(now)
        over = self._report.get("state") in _OVER
        if not kept and not over and status is not None and status.steps:
            self.samples.add(of_status(status, now))

    def _add(self, messages: Iterable[pb.Event]) -> None:
        """Add new events, and draw those that concern the lives of processes."""
        for told in self.book.add(messages):
            match told.event:
                case ProcessChanged() as event:
                    self.lanes.changed(told.time, event)
                case WorkerWaited() as event:
                    self.lanes.waited(told.time, event)
                case (Loss() | ModelRestored()) as event if event.lost_process:
                    died = event.way != "taken"
                    self.lanes.lost(told.time, event.lost_process, event.cause, died=died)

    def _recall(self, status: pb.GetStatusResponse | None) -> Sequence[pb.Event]:
        """Return the events that a job on a cluster has left, and add the curves if no master sends
        them: at the first read, and at the first one after the end."""
        over, found = self._report.get("state") in _OVER, list[pb.Event]()
        if self._recalled == over:
            return found
        with contextlib.suppress(EdlError):  # the next read tries again
            content = self._job.history()
            found += events.parse(content.split(b"\n"))
            if status is None and content and not self.samples.kept:
                part = pb.HistoryPart(inode=_LEFT, content=content)
                self._history.take(part, self.samples)
            self._recalled = over
        return found

    def _take_history(self, status: pb.GetStatusResponse) -> bool:
        """Add what the master of a job on a cluster sent of its history. Return whether there is a
        history."""
        history, samples = self._history, self.samples
        part = status.history  # the first answer may have a part only
        with contextlib.suppress(EdlError):  # the rest follows a second later
            while history.take(part, samples) and len(part.content) >= _FULL_BYTES:
                part = self._job.ask(pb.GetStatusRequest(history_after=history.after)).history
        return samples.kept

    def _note(self, now: float) -> None:
        """Note the processes of the newest status."""
        report = self._report
        over = report.get("state") in _OVER
        running = [p for p in report.get("processes", ()) if p["state"] != EXITED]
        self._tables = tables(running)[:_MOST_TABLES]
        self._changes.note(self._tables, now)
        self._machines.note(running)
        # A job that ended before this page began has no times but those of its history.
        began = self._started if not self.lanes.all else now
        for p in report.get("processes", ()):
            fields = {name: p[name] for name in ("role", "id", "pid", "state", "exit", "died")}
            at = began if p["state"] != EXITED else self._last_time(now)
            self.lanes.note(at, **fields)
        if over and not self._closed:
            self.lanes.close(self._last_time(now))
        self._closed = over

    def _last_time(self, now: float) -> float:
        """Return the time of the last sign of a job that is over; ``now`` while it runs."""
        if self._report.get("state") not in _OVER:
            return now
        last = self.book.all[-1]["time"] if self.book.all else self._job.touched()
        return max(last, self.samples.all[-1].time if self.samples.all else 0.0)

    # ---- answers ----

    def page(self, *, after: int = 0, first: int = 0, generation: str = "") -> dict[str, Any]:
        """Return what the page shows, as JSON values.

        Args:
            after: number of the newest event that the browser has.
            first: number of samples that the browser has.
            generation: value of the answer from which the browser has them; a browser with
                another value receives everything.
        """
        with self._lock:
            samples, now = self.samples, f"{self._generation}.{self.samples.generation}"
            if generation != now:
                after = first = 0
            config = self._config
            report = {"kind": config.kind if config else "", **self._report}
            processes = report.pop("processes", [])
            ended = [p for p in processes if p["state"] == EXITED]
            return {
                "name": self._job.name,
                "now": self._clock(),
                "started": self._started,
                "last": self._last_time(self._clock()),
                "over": report.get("state") in _OVER,
                "problem": self._problem,
                "task_timeout_s": config.cluster.task_timeout_s if config else 0,
                "status": report,
                "processes": [self._live(p) for p in processes if p["state"] != EXITED],
                "tables": self._tables,
                "machines": self._machines.all(),
                "ended": [f"{p['role']}-{p['id']}" for p in ended[-_MOST_ENDED:]],
                "samples": samples.rows(first),
                "samples_first": first,
                "samples_total": len(samples.all),
                "generation": now,
                "interval_s": samples.interval_s,
                "evaluated_at": samples.eval_times,
                "lanes": self.lanes.shown(),
                "deaths": self.lanes.deaths(),
                "incidents": incidents.costs(
                    self.book.incidents, report.get("outages", ()), self.lanes
                ),
                "rings": list(self.book.rings),
                "events": self.book.after(after),
                "events_last": self.book.last,
                "events_count": len(self.book.all),
                "kinds": dict(self.book.kinds),
                "levels": dict(self.book.levels),
            }

    def _live(self, process: dict[str, Any]) -> dict[str, Any]:
        """Return a process without what the page does not show, with its rate; None at first."""
        kept = {k: v for k, v in process.items() if k != "log" and v not in ("", None)}
        count = {"worker": "records", "ps": "updates"}.get(process["role"])
        if count is not None:
            key, now, records = (
                (process["role"], process["id"]),
                self._clock(),
                process.get(count, 0),
            )
            before, had, rate = self._rates.get(key, (now, records, None))
            if now - before >= _EVERY_S:
                rate = max(0.0, (records - had) / (now - before))
                before, had = now, records
            self._rates[key] = before, had, rate
            kept["rate"] = None if rate is None else round(rate, 2)
        if kept.pop("usage", None):
            kept["used"] = self._machines.of(process["role"], process["id"])
        if counts := kept.pop("counts", None):
            kept["load"] = self._loads.load(process["id"], counts, self._read_at)
        return kept

    def events(self, **filters: Any) -> list[dict[str, Any]]:
        """Return the events that match the arguments of ``EventBook.matching``."""
        with self._lock:
            return self.book.matching(**filters)

    def log(self, name: str) -> list[str]:
        """Return the last lines of the log of a process, such as ``worker-3``.

        Raises:
            EdlError: there is no such log.
        """
        role, _, number = name.rpartition("-")
        with self._lock:
            known = self._report.get("processes", [])
        paths = [p.get("log") for p in known if (p["role"], str(p["id"])) == (role, number)]
        path = Path(paths[-1]) if paths and paths[-1] else None
        lines: list[str] = []
        if self._events_file is not None and path is not None and path.is_file():
            lines = last_lines(path, _LOG_LINES).split("\n")
        elif role in _ROLES and number.isdecimal():
            query = LogQuery(role=role, id=int(number), tail=_LOG_LINES)
            self._job.read_logs(query, lambda _, line: lines.append(line))
        return [line[:_LINE_CHARS] for line in lines[-_LOG_LINES:]]

    def logs(self) -> dict[str, list[str]]:
        """Return the ends of all logs that an exported file shows: of processes that died first,
        at most 40."""
        with self._lock:
            died = [lane.name for lane in self.lanes.all.values() if lane.died]
            others = [f"{p['role']}-{p['id']}" for p in self._report.get("processes", [])]
        found = {}
        for name in list(dict.fromkeys([*died[-20:], *others]))[:40]:
            with contextlib.suppress(EdlError):
                found[name] = self.log(name)
        return found

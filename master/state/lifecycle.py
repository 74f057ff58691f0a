"""How a job goes from its start to its end, and what the user hears of it. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

# A worker that does not come to the end of its step within this is ended, and a final checkpoint
# that is not written within this is dropped: a job that is to stop does not wait for ever.
LEAVE_WITHIN_S = 20.0
STOP_WITHIN_S = 80.0
# A restarted master may be on another machine. Its processes notice that the machine before is gone
# after 15 s, and the name server may tell them the address before for 30 s.
RETURN_WITHIN_S = 60.0
# Events that are kept.
_EVENTS = 1000
# Commands whose events are remembered, and the size of an event of theirs.
_SOURCES = 100
_TEXT_CHARS = 2000
_LEVELS = ("info", "warning", "error")
_WINDOW_S = 10.0
_SAMPLE_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """How the job ends."""

    state: str
    """``finished``, ``failed`` or ``stopped``."""
    exit_code: int
    error: str = ""
    traceback: str = ""
    usage_error: bool = False

    @property
    def reason(self) -> str:
        """Why the job ended, for its agents; empty: the job finished."""
        return f"the job was stopped: {self.error}" if self.state == "stopped" else self.error


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """The job is to stop: all workers leave, and a final checkpoint is written."""

    reason: str
    began: float

    @property
    def leave_by(self) -> float:
        """When the workers are to be gone."""
        return self.began + LEAVE_WITHIN_S


class StatefulPart(Protocol):
    """A part of a job that a restarted master rebuilds."""

    def to_state(self) -> Any:
        """What a restarted master needs, as JSON can say it."""
        ...

    def from_state(self, state: Any, now: float) -> None:
        """The inverse of :meth:`to_state`; every process counts as heard now."""
        ...


class EventLog:
    """The last events, numbered from 1; a restarted master continues the numbers."""

    def __init__(self) -> None:
        self._kept: deque[pb.Event] = deque(maxlen=_EVENTS)
        self._count = 0
        self.sources: dict[str, int] = {}
        """Commands that added events: the number of the last one of each."""

    def continue_after(self, sequence: int) -> None:
        """An earlier master of the job wrote the events up to that number."""
        assert not self._count, "events were added before"
        self._count = sequence

    def add(self, level: str, text: str, wall_time: float, traceback: str = "") -> None:
        """Appends one; ``wall_time`` in Unix seconds."""
        self._count += 1
        self._kept.append(
            pb.Event(
                sequence=self._count, time=wall_time, level=level, text=text, traceback=traceback
            )
        )

    def add_from(self, source: str, events: Iterable[pb.Event]) -> None:
        """Appends the events of a command, each once however often the command sends it.

        Raises:
            UsageError: there is no such level; nothing was added.
        """
        new = [event for event in events if event.sequence > self.sources.get(source, 0)]
        for event in new:
            if event.level not in _LEVELS:
                raise UsageError(f"an event of level {event.level!r}; expected info to error")
        for event in new:
            self.add(event.level, event.text[:_TEXT_CHARS], event.time)
            self.sources[source] = event.sequence
        while len(self.sources) > _SOURCES:
            del self.sources[next(iter(self.sources))]

    def after(self, sequence: int) -> list[pb.Event]:
        """The events with a higher number that are still kept, in order."""
        new = min(self._count - sequence, len(self._kept))
        return [self._kept[i] for i in range(len(self._kept) - new, len(self._kept))]


class Rates:
    """Records and minibatches per second over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def sample(self, now: float, records: int, steps: int) -> None:
        """Notes how much is done; going back (after a restore) begins anew."""
        if self._samples:
            last = self._samples[-1]
            if records < last[1]:
                self._samples.clear()
            elif now - last[0] < _SAMPLE_S:
                return
        self._samples.append((now, records, steps))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float]:
        """(records, minibatches) per second; zeros before there are two samples."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        span = last[0] - first[0]
        return (last[1] - first[1]) / span, (last[2] - first[2]) / span


class Lifecycle:
    """Starting, running, stopping or finishing, then finished, failed or stopped; never back.

    Args:
        wall_offset_s: Unix time minus the clock of the events.
    """

    def __init__(self, *, wall_offset_s: float) -> None:
        self.log = EventLog()
        self.rates = Rates()
        self.outcome: Outcome | None = None
        self.ended_at = 0.0
        """When the outcome was known."""
        self.leave_s = 0.0
        """How long workers have to leave at the end."""
        self.stopping: Stopping | None = None
        self.over = False
        """Every process has ended too."""
        self.rollbacks = 0
        """How often the model went back to a checkpoint, or to the beginning."""
        self.records_rolled_back = 0
        """Records that were done and had to be trained again."""
        self.updates_lost = 0
        """Updates of one server each that were in damaged records of journals."""
        self._all_back_by = -math.inf
        self._fell_from = 0  # records that were done before the model went back, if that is new
        self._began_at: float | None = None
        self._trained_at: float | None = None
        self._wall_offset_s = wall_offset_s

    @property
    def ending(self) -> bool:
        """The job has an outcome, or is to stop."""
        return self.outcome is not None or self.stopping is not None

    @property
    def state(self) -> str:
        """starting, running, stopping, finishing, finished, failed or stopped."""
        if self.outcome is not None:
            return self.outcome.state if self.over else "finishing"
        if self.stopping is not None:
            return "stopping"
        if self._began_at is None:
            return "starting"
        return "finishing" if self._trained_at is not None else "running"

    def wall_s(self, now: float) -> float:
        """Seconds since a worker first had work, until the work was done."""
        if self._began_at is None:
            return 0.0
        return (now if self._trained_at is None else self._trained_at) - self._began_at

    def note(self, level: str, text: str, now: float, traceback: str = "") -> None:
        """Appends an event to the log of the job."""
        self.log.add(level, text, now + self._wall_offset_s, traceback)

    def restarted(self, now: float) -> None:
        """This master continues a job: processes are to find it first."""
        self._all_back_by = now + RETURN_WITHIN_S

    def counts_silence(self, now: float) -> bool:
        """Whether a process that has not been heard for too long is lost."""
        return now >= self._all_back_by

    def paused(self, seconds: float) -> None:
        """The clock of the events stood still for so long."""
        self._wall_offset_s += seconds

    def began(self, now: float) -> None:
        """A worker has work: the job runs."""
        self._began_at = now if self._began_at is None else self._began_at

    def trained(self, now: float) -> None:
        """The work is done."""
        self._trained_at = now if self._trained_at is None else self._trained_at

    def continued(self) -> None:
        """There is work again, after all of it was done."""
        self._trained_at = None

    def rolled_back(self, done: int) -> None:
        """The model goes back, when so many records were done: there is work again."""
        self.continued()
        self.rollbacks += 1
        self._fell_from = max(self._fell_from, done)

    def resumed_from(self, done: int) -> None:
        """So many records are done; if the model has just gone back, those are what it kept."""
        if self._fell_from:
            self.records_rolled_back += max(0, self._fell_from - done)
            self._fell_from = 0

    def stop(self, reason: str, now: float) -> None:
        """The job is to stop."""
        self.note("warning", f"stopping: {reason}", now)
        self.stopping = Stopping(reason=reason, began=now)

    def heed_stopping(
        self, now: float, *, workers: int, members_save: bool, awaits_snapshot: bool
    ) -> None:
        """Ends a job that is to stop when no final checkpoint can be expected any more.

        Args:
            workers: those that have not left.
            members_save: the members of a ring write it, and have written it when all have left.
            awaits_snapshot: one worker is to write it, and none does.
        """
        if self.stopping is None or self.outcome is not None:
            return
        if members_save and not workers:
            self.stopped(now)
        elif awaits_snapshot and not workers:
            self.stopped(now, "no worker is left that has the model")
        elif (members_save or awaits_snapshot) and now >= self.stopping.leave_by:
            why = f"no worker came to the end of its step within {LEAVE_WITHIN_S:g} s"
            self.stopped(now, why)
        elif now - self.stopping.began >= STOP_WITHIN_S:
            self.stopped(now, f"it was not written within {STOP_WITHIN_S:g} s")

    def stopped(self, now: float, problem: str = "") -> None:
        """The job that was to stop ends.

        Args:
            problem: why what it has trained could not be kept.
        """
        assert self.stopping is not None
        if problem:
            self.note("warning", f"no last checkpoint: {problem}", now)
        self._end(Outcome("stopped", 143, error=self.stopping.reason), now)

    def finish(self, now: float, *, leave_s: float) -> None:
        """The job is finished."""
        self.note("info", "finished", now)
        self.leave_s = leave_s
        self._end(Outcome("finished", 0), now)

    def fail(self, error: str, now: float, *, traceback: str = "", usage: bool = False) -> None:
        """The job cannot continue; the first cause counts."""
        if self.outcome is not None:
            return
        if self.stopping is not None:
            self.stopped(now, error)
            return
        self.note("error", error, now, traceback)
        self._end(Outcome("failed", 2 if usage else 1, error, traceback, usage), now)

    def _end(self, outcome: Outcome, now: float) -> None:
        self.outcome, self.ended_at = outcome, now

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it; times are Unix seconds."""
        wall, stopping = self._wall, self.stopping
        return {
            "began": wall(self._began_at),
            "trained": wall(self._trained_at),
            "ended": wall(self.ended_at),
            "leave_s": self.leave_s,
            "stopping": None if stopping is None else [stopping.reason, wall(stopping.began)],
            "outcome": None if self.outcome is None else asdict(self.outcome),
            "sources": self.log.sources,
            "rollbacks": self.rollbacks,
            "records_rolled_back": self.records_rolled_back,
            "updates_lost": self.updates_lost,
            "fell_from": self._fell_from,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """The inverse of :meth:`to_state`."""

        def at(wall: float | None) -> float | None:
            return None if wall is None else min(now, wall - self._wall_offset_s)

        self._began_at, self._trained_at = at(state["began"]), at(state["trained"])
        if state["stopping"] is not None:
            reason, began = state["stopping"]
            self.stopping = Stopping(reason=reason, began=at(began) or now)
        if state["outcome"] is not None:
            self.outcome, self.leave_s = Outcome(**state["outcome"]), state["leave_s"]
            self.ended_at = at(state["ended"]) or now
        self.log.sources.update(state["sources"])
        self.rollbacks = state["rollbacks"]
        self.records_rolled_back = state["records_rolled_back"]
        self.updates_lost = state["updates_lost"]
        self._fell_from = state["fell_from"]

    def _wall(self, at: float | None) -> float | None:
        return None if at is None else at + self._wall_offset_s

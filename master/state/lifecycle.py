"""Phases of a job from start to end, its outcome, and its log of events. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from master.state.outages import Outages
from torch_edl import events
from torch_edl.errors import UsageError
from torch_edl.events import Event
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb

# Seconds after which, in a job that is to stop, a worker that has not finished its step is
# terminated, and a final checkpoint that is not written is dropped.
LEAVE_WITHIN_S = 20.0
STOP_WITHIN_S = 80.0
# Least seconds that a process has to find a restarted master. At the same address, it tries to
# connect each second, and a heartbeat may take 5 s. If the master may run on another machine,
# processes notice after 15 s that the old machine is gone, and the name server may return the old
# address for 30 s.
RECONNECT_WITHIN_S = 10.0
RETURN_WITHIN_S = 60.0
# Number of events that the log keeps, most of them changes of processes, and of one answer.
EVENTS_KEPT = 10_000
_EVENTS_AT_ONCE = 2_000
# Number of commands whose last event is remembered, and characters of the fields of their events.
_SOURCES = 100
_MOST_CHARS = 10_000
_LAST_TIME = 1e11  # Unix seconds, which `time.localtime` converts
_WINDOW_S = 10.0
_SAMPLE_S = 0.5


@dataclass(frozen=True)
class Outcome:
    state: str
    """``finished``, ``failed`` or ``stopped``."""
    exit_code: int
    error: str = ""
    """First cause of the failure, or reason of the stop; empty if the job finished."""
    traceback: str = ""
    """Traceback of the user's code; empty if it did not raise."""
    usage_error: bool = False
    """True if the user made the error."""

    @property
    def reason(self) -> str:
        """Reason why the job ended, as nodes receive it; empty if the job finished."""
        return f"the job was stopped: {self.error}" if self.state == "stopped" else self.error


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """A request to stop the job: all workers leave, and a final checkpoint is written."""

    reason: str
    began: float

    @property
    def leave_by(self) -> float:
        """Time by which all workers must have left."""
        return self.began + LEAVE_WITHIN_S


class EventLog:
    """The newest events of a job, numbered from 1. A restarted master continues the numbers."""

    def __init__(self) -> None:
        self._kept: deque[pb.Event] = deque(maxlen=EVENTS_KEPT)
        self._count = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of events by kind and level, those of earlier masters included."""
        self.sources: dict[str, int] = {}
        """Number of the last event that was added, for each command that sends events."""

    def continue_after(self, sequence: int, events: Iterable[pb.Event] = ()) -> None:
        """Continue the numbers of an earlier master, which ended with ``sequence``, and keep its
        last events."""
        assert not self._count, "events were added before"
        self._count = sequence
        self._kept.extend(events)

    @property
    def count(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._count

    def exceed(self, sequence: int) -> None:
        """Continue above all numbers that a lost file of events may have had, of which
        ``sequence`` was stored: clients ask for what is above the newest number they know."""
        if self._count < sequence:
            self._count = sequence + EVENTS_KEPT

    def add(self, event: Event, wall_time: float) -> int:
        """Append an event, and return its number; ``wall_time`` is in Unix seconds."""
        self._append(event_messages.to_message(event, 0, wall_time))
        return self._count

    def _append(self, message: pb.Event) -> None:
        self._count += 1
        message.sequence = self._count
        self.counts[message.kind, message.level] += 1
        self._kept.append(message)

    def add_from(self, source: str, messages: Iterable[pb.Event]) -> None:
        """Append the events of a command; an event that the command repeats is added once.

        Raises:
            UsageError: an event is of no kind that commands report, has fields that do not fit, an
                impossible time, or is too long; nothing was added.
        """
        new = [each for each in messages if each.sequence > self.sources.get(source, 0)]
        found = [_of_command(each) for each in new]
        for each, event in zip(new, found, strict=True):
            self.sources[source] = each.sequence
            self.add(event, each.time)
        while len(self.sources) > _SOURCES:
            del self.sources[next(iter(self.sources))]

    def after(self, sequence: int) -> list[pb.Event]:
        """Return all kept events with a number above ``sequence``, in order."""
        new = min(self._count - sequence, len(self._kept))
        newest = (self._kept[i] for i in range(len(self._kept) - new, len(self._kept)))
        return [event for event in newest if event.sequence > sequence]

    def page(self, sequence: int, *, shown_only: bool = False) -> list[pb.Event]:
        """Return the events for one answer to a client that knows those up to ``sequence``: the
        next 2,000, or the newest 2,000 for a client that knows none.

        Args:
            shown_only: leave out those that a terminal does not show.
        """
        found = self.after(sequence)
        if shown_only:
            found = [event for event in found if event.level != "debug"]
        return found[:_EVENTS_AT_ONCE] if sequence else found[-_EVENTS_AT_ONCE:]


def _of_command(message: pb.Event) -> Event:
    """Return the event that a command sent, whose text is made anew."""
    kind = message.kind[:60]
    if (chars := len(message.fields)) > _MOST_CHARS:
        raise UsageError(f"an event with fields of {chars:,} characters; at most {_MOST_CHARS:,}")
    if not 0.0 <= message.time <= _LAST_TIME:
        raise UsageError(f"an event of the kind {kind!r} at the time {message.time}")
    event = event_messages.from_message(message)
    if not event.FROM_COMMANDS:
        raise UsageError(f"an event of the kind {kind!r}, which no command reports")
    return event


class Rates:
    """Records and minibatches per second over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def sample(self, now: float, records: int, steps: int) -> None:
        """Record the totals at ``now``; fewer records than before (a restore) clear the samples."""
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
        """Return (records, minibatches) per second; zeros before the second sample."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        span = last[0] - first[0]
        return (last[1] - first[1]) / span, (last[2] - first[2]) / span


class Lifecycle:
    """The phase of a job and its outcome, which never changes once it is known.

    Args:
        wall_offset_s: Unix time minus the clock of the events.
    """

    def __init__(self, *, wall_offset_s: float) -> None:
        self.log = EventLog()
        self.rates = Rates()
        self.outages = Outages()
        self.outcome: Outcome | None = None
        self.ended_at = 0.0
        """Time at which the outcome became known; 0 before."""
        self.leave_s = 0.0
        """Seconds that workers have to leave after the job finished."""
        self.stopping: Stopping | None = None
        self.over = False
        """True once the job has an outcome and all its processes have ended."""
        self.rollbacks = 0
        """Number of times that the model was restored from a checkpoint or from the beginning."""
        self.records_rolled_back = 0
        """Number of records that were trained, then lost by a rollback."""
        self.updates_lost = 0
        """Number of updates that were lost in damaged records of journals, summed over servers."""
        self._listened_at = -math.inf
        self._found_by = -math.inf
        self._fell_from = 0  # records done before a rollback; 0 once counted
        self._began_at: float | None = None
        self._trained_at: float | None = None
        self._wall_offset_s = wall_offset_s

    @property
    def ending(self) -> bool:
        """True if the job has an outcome, or is to stop."""
        return self.outcome is not None or self.stopping is not None

    @property
    def state(self) -> str:
        """Phase: starting, running, stopping, finishing, finished, failed or stopped."""
        if self.outcome is not None:
            return self.outcome.state if self.over else "finishing"
        if self.stopping is not None:
            return "stopping"
        if self._began_at is None:
            return "starting"
        return "finishing" if self._trained_at is not None else "running"

    def wall_s(self, now: float) -> float:
        """Return the seconds from the first lease or ring to the end of the work; 0 before it
        began."""
        if self._began_at is None:
            return 0.0
        return (now if self._trained_at is None else self._trained_at) - self._began_at

    def note(self, event: Event, now: float) -> None:
        """Append an event to the log; count the loss and begin the outage that it reports."""
        wall_time = now + self._wall_offset_s
        number = self.log.add(event, wall_time)
        if event.lost_process:
            self.outages.lost(events.role_of(event.lost_process))
        if event.disrupts:
            self.outages.begin(
                number,
                wall_time,
                now,
                silent_s=event.silence_s,
                away=event.is_unseen,
            )

    def describe_outages(self, status: pb.GetStatusResponse) -> None:
        """Add the lost processes and the outages to a status."""
        self.outages.describe(status, self._wall_offset_s)

    def listens(self, now: float, *, same_address: bool, heartbeat_timeout_s: float) -> None:
        """Begin the period in which the processes have yet to find a restarted master.

        Args:
            same_address: the master listens at the address of the earlier one.
        """
        least_s = RECONNECT_WITHIN_S if same_address else RETURN_WITHIN_S
        self._listened_at, self._found_by = now, now + max(least_s, heartbeat_timeout_s)

    def counts_silence(self, heard_at: float, now: float) -> bool:
        """Return whether a process that was last heard at ``heard_at``, and exceeds its heartbeat
        timeout, is to be declared lost."""
        return heard_at > self._listened_at or now >= self._found_by

    def paused(self, seconds: float) -> None:
        """Count the seconds for which the clock of the events stood still."""
        self._wall_offset_s += seconds

    def began(self, now: float) -> None:
        self._began_at = now if self._began_at is None else self._began_at

    def trained(self, now: float) -> None:
        """Record that the work is done."""
        self._trained_at = now if self._trained_at is None else self._trained_at

    def continued(self) -> None:
        """Record that new work was added after all work was done."""
        self._trained_at = None

    def rolled_back(self, done: int) -> None:
        """Record a rollback of the model, before which ``done`` records were done."""
        self.continued()
        self.rollbacks += 1
        self._fell_from = max(self._fell_from, done)

    def resumed_from(self, done: int) -> None:
        """Count the records that the last rollback lost, on the first call after it: ``done`` are
        left."""
        if self._fell_from:
            self.records_rolled_back += max(0, self._fell_from - done)
            self._fell_from = 0

    def stop(self, reason: str, now: float) -> None:
        self.note(events.JobStopping(reason=reason), now)
        self.stopping = Stopping(reason=reason, began=now)

    def heed_stopping(
        self, now: float, *, workers: int, members_save: bool, awaits_snapshot: bool
    ) -> None:
        """End a stopping job once no final checkpoint can be expected.

        Args:
            workers: number of workers that have not left.
            members_save: the members of a ring write the final checkpoint before they leave.
            awaits_snapshot: a worker is to write the final checkpoint, and none has begun.
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
        """End the job that was asked to stop; ``problem`` is the reason why the last training is in
        no checkpoint."""
        assert self.stopping is not None
        if problem:
            self.note(events.LastCheckpointMissing(why=problem), now)
        self.outcome, self.ended_at = Outcome("stopped", 143, error=self.stopping.reason), now

    def finish(self, now: float, *, leave_s: float) -> None:
        self.note(events.JobFinished(), now)
        self.leave_s = leave_s
        self.outcome, self.ended_at = Outcome("finished", 0), now

    def fail(self, error: str, now: float, *, traceback: str = "", usage: bool = False) -> None:
        """End the job as failed; only the first cause is recorded. A stopping job ends as
        stopped."""
        if self.outcome is not None:
            return
        if self.stopping is not None:
            self.stopped(now, error)
            return
        self.note(events.JobFailed(error=error, traceback=traceback), now)
        self.outcome = Outcome("failed", 2 if usage else 1, error, traceback, usage)
        self.ended_at = now

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:

        def wall(at: float | None) -> float | None:
            return None if at is None else at + self._wall_offset_s

        stopping = self.stopping
        return {
            "began": wall(self._began_at),
            "trained": wall(self._trained_at),
            "ended": wall(self.ended_at),
            "leave_s": self.leave_s,
            "stopping": None if stopping is None else [stopping.reason, wall(stopping.began)],
            "outcome": None if self.outcome is None else asdict(self.outcome),
            "events": self.log.count,
            "sources": self.log.sources,
            "counts": [[kind, level, n] for (kind, level), n in self.log.counts.items()],
            "rollbacks": self.rollbacks,
            "records_rolled_back": self.records_rolled_back,
            "updates_lost": self.updates_lost,
            "fell_from": self._fell_from,
            "outages": self.outages.to_state(self._wall_offset_s),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        def at(wall: float | None) -> float | None:
            return None if wall is None else min(now, wall - self._wall_offset_s)

        self._began_at, self._trained_at = at(state["began"]), at(state["trained"])
        if state["stopping"] is not None:
            reason, began = state["stopping"]
            self.stopping = Stopping(reason=reason, began=at(began) or now)
        if state["outcome"] is not None:
            self.outcome, self.leave_s = Outcome(**state["outcome"]), state["leave_s"]
            self.ended_at = at(state["ended"]) or now
        self.log.exceed(state["events"])
        self.log.sources.update(state["sources"])
        for kind, level, count in state["counts"]:
            self.log.counts[kind, level] += count
        self.rollbacks = state["rollbacks"]
        self.records_rolled_back = state["records_rolled_back"]
        self.updates_lost = state["updates_lost"]
        self._fell_from = state["fell_from"]
        self.outages.from_state(state["outages"], self._wall_offset_s)

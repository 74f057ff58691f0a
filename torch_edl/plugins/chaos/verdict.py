"""Derives from the status of a job how it took the faults. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch_edl.plugins.chaos.storm import Blow
from torch_edl.wire import master_pb2 as pb

# Seconds without progress above which a stall is counted; workers report each second.
STALL_S = 2.0
_PENDING = "pending"
_BROKEN = ("failed", "dead")


@dataclass
class Gaps:
    """Number and longest duration of gaps, such as stalls."""

    times: int = 0
    longest_s: float = 0.0

    def add(self, gap_s: float, *, least_s: float = 0.0) -> None:
        """Count a gap of more than ``least_s``; ``longest_s`` includes shorter gaps."""
        self.times += gap_s > least_s
        self.longest_s = round(max(self.longest_s, gap_s), 2)


@dataclass(kw_only=True)
class StormVerdict:
    """The report of ``torch-edl chaos``."""

    job: str
    seed: int
    held: bool | None = True
    """True if nothing was lost that the configuration promises to keep, and the job goes on. None
    if the storm was ended before the job could make progress."""
    problems: list[str] = field(default_factory=list)
    """Reasons why the promise did not hold; empty if it did."""
    state: str = ""
    """The state of the job at the end."""
    seconds: float = 0.0
    """Duration of the storm until the verdict."""
    kills: dict[str, int] = field(default_factory=dict)
    """Number of killed processes, by role."""
    pauses: dict[str, int] = field(default_factory=dict)
    """Number of paused processes, by role."""
    missed: int = 0
    """Number of faults that found no process."""
    replaced: dict[str, int] = field(default_factory=dict)
    """Number of processes that started during the storm, by role."""
    records: dict[str, int] = field(default_factory=dict)
    """Records done ``before`` and ``after`` the storm, and their ``total``."""
    rolled_back: dict[str, int] = field(default_factory=dict)
    """Number of rollbacks (``times``) and of records rolled back (``records``)."""
    updates_lost: int = 0
    """Updates of single servers that were lost because ``--repair`` left out damaged records of a
    journal."""
    stalls: Gaps = field(default_factory=Gaps)
    """Times without progress for more than two seconds, except times without a master."""
    master_away: Gaps = field(default_factory=Gaps)
    """Times in which no master answered."""

    @property
    def text(self) -> str:
        """The verdict as a sentence."""
        if self.held is None:
            return "ended before a verdict: no record was done since the last fault"
        return "the promise held" if self.held else "the promise did NOT hold"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return dataclasses.asdict(self)


def _process(status: pb.ProcessStatus) -> tuple[str, int, int]:
    """Return a key that is unique among all processes of the job.

    Only a restarted master keeps its id, so the key of a master has its pid.
    """
    return status.role, status.id, status.pid if status.role == "master" else 0


class StatusWatch:
    """Follows the status of a job during a storm.

    Args:
        first: status before the storm.
        now: time at which the status was received.
        may_roll_back: True if the configuration of the job does not promise to keep all progress.
    """

    def __init__(
        self, first: pb.GetStatusResponse, now: float, *, seed: int, may_roll_back: bool
    ) -> None:
        self._first = self.last = first
        self._began = self._answered = self._progress = now
        self._may_roll_back = may_roll_back
        self._known = {_process(p) for p in first.processes if p.state != _PENDING}
        self._replaced: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._pauses: Counter[str] = Counter()
        self._absent = False
        self._verdict = StormVerdict(job=first.job, seed=seed)
        self._struck_at = now
        self._done_then: int | None = None
        self.progressed = False
        """True if records were done since the last fault."""

    def struck(self, blow: Blow, now: float) -> None:
        """Record that a signal was sent."""
        self._struck_at, self._done_then = now, None
        (self._pauses if blow.pause_s else self._kills)[blow.target.role] += 1
        self.progressed = False

    def saw(self, status: pb.GetStatusResponse | None, now: float) -> None:
        """Record the status that was requested at ``now``; None if the master did not answer."""
        if status is None:
            self._absent = True
            return
        if self._absent:
            self._absent = False
            away_s = now - self._answered
            self._verdict.master_away.add(away_s)
            self._progress += away_s  # progress without a master is unknown
        self._answered = now
        if status.records.done > self.last.records.done or status.state != "running":
            if self.last.state == "running":
                self._verdict.stalls.add(now - self._progress, least_s=STALL_S)
            self._progress = now
        if now > self._struck_at:
            # A worker that died loses the progress that it had not reported.
            before = status.records.done if self._done_then is None else self._done_then
            self._done_then = min(before, status.records.done)
            self.progressed |= status.records.done > self._done_then
        for process in status.processes:
            key = _process(process)
            if process.state != _PENDING and key not in self._known:
                self._known.add(key)
                self._replaced[process.role] += 1
        self.last = status

    def counts(self) -> str:
        """Return the number of kills and pauses so far, such as ``3 worker, 1 ps``."""
        parts = [f"{n} {role}" for role, n in sorted(self._kills.items())]
        parts += [f"{n} {role} paused" for role, n in sorted(self._pauses.items())]
        return ", ".join(parts) or "none"

    def rolled_back(self) -> tuple[int, int]:
        """Return the number of rollbacks and of records rolled back since the storm began."""
        first, last = self._first, self.last
        records = last.rolled_back.records - first.rolled_back.records
        return last.rolled_back.times - first.rolled_back.times, records

    def verdict(
        self, now: float, *, state: str, error: str, missed: int, is_cut: bool = False
    ) -> StormVerdict:
        """Return the verdict.

        Args:
            state: current state of the job.
            error: reason why the job failed; empty if it did not.
            missed: number of faults that found no process.
            is_cut: True if the user ended the storm.
        """
        found, (times, records) = self._verdict, self.rolled_back()
        found.state, found.missed, found.seconds = state, missed, round(now - self._began, 1)
        if state == "running":  # the current stall lasts until now
            seen = self._answered if self._absent else now
            found.stalls.add(seen - self._progress, least_s=STALL_S)
        found.kills, found.pauses = dict(self._kills), dict(self._pauses)
        found.replaced = dict(self._replaced)
        found.records = {
            "before": self._first.records.done,
            "after": self.last.records.done,
            "total": self.last.records.total,
        }
        found.rolled_back = {"times": times, "records": records}
        if state in _BROKEN:
            found.problems.append(f"the job is {state}" + (f": {error}" if error else ""))
        is_open = state == "running" and not self.progressed
        if is_open and not is_cut:
            waited = now - self._progress
            found.problems.append(f"no record was done in the last {waited:.0f} s")
        if times and not self._may_roll_back:
            found.problems.append(f"{records:,} records were rolled back")
        found.updates_lost = self.last.updates_lost - self._first.updates_lost
        if found.updates_lost:
            what = "updates in damaged records of journals are lost (--repair)"
            found.problems.append(f"{found.updates_lost:,} {what}")
        found.held = None if is_open and is_cut and not found.problems else not found.problems
        return found

"""Outages of a job: the seconds without a step after each loss, move and restart. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_edl.wire import master_pb2 as pb

_MOST = 200


@dataclass
class Outage:
    """The time around one disruption in which the job made no step."""

    event: int
    """Number of the event that reports the disruption."""
    time: float
    """Unix time of the event."""
    since: float
    """Time from which on no step was made, on the clock of the events."""
    stalled_s: float | None = None
    """Seconds without a step; None before the next step."""
    heard: dict[int, float | None] = field(default_factory=dict)
    """Workers that reported after the disruption. The value is the time of the first report if
    it had new steps, and None if the worker has paused since."""
    unseen: bool = False
    """True if no master observed the job before the disruption."""
    stood_since: float = -math.inf
    """Time of the last step before an unseen disruption, from the first reports of the workers;
    -inf before the first report."""


class Outages:
    """The newest outages, the seconds that all of them took, and the number of lost processes.

    Workers report their number of steps once a second. The steps of a worker's first report after
    a disruption may be older than the disruption. The report ends the outage only if the next
    report of the worker has new steps, too; otherwise the outage ends with the first report that
    has some. The result is therefore exact to the interval between two reports.

    While no master runs, a server may die, or leases may expire. The first report of a worker to
    the next master contains the longest standstill (time without a step) of the worker since the
    last answer of a master. If the standstill lasted until the next master began, the outage begins
    with the last step of any worker.
    """

    def __init__(self) -> None:
        self.newest: deque[Outage] = deque(maxlen=_MOST)
        self.losses = {"worker": 0, "ps": 0}
        """Number of lost processes by role."""
        self.stalled_s = 0.0
        """Seconds of all outages that are over; outages at the same time count once."""
        self._open: list[Outage] = []
        self._span: tuple[float, float] | None = None  # (begin, end) of outages that overlap
        self._stepped_at: float | None = None

    def lost(self, role: str) -> None:
        """Count a lost process."""
        self.losses[role] = self.losses.get(role, 0) + 1

    def begin(
        self,
        event: int,
        time: float,
        now: float,
        *,
        silent_s: float = 0.0,
        away: bool = False,
    ) -> None:
        """Begin an outage.

        Args:
            event: number of the event that reports the disruption.
            time: Unix time of the event.
            silent_s: seconds for which the process that was lost may have been gone already. The
                outage begins with the last step of the job in this time.
            away: True if no master observed the job before the event.
        """
        stepped_at = now if self._stepped_at is None else self._stepped_at
        since = max(now - silent_s, min(now, stepped_at))
        outage = Outage(event, time, since, unseen=away)
        self.newest.append(outage)
        self._open.append(outage)
        if len(self._open) > _MOST:
            del self._open[1]

    def heard(
        self, worker: int, now: float, *, stepped: bool, stood: pb.Standstill | None = None
    ) -> None:
        """Record a report of a worker.

        Args:
            stepped: True if the worker has made steps since its last report.
            stood: the longest time without a step since the last answered report; None if the
                worker has made no step.
        """
        for outage in self._open:
            if outage.unseen and worker not in outage.heard and stood is not None:
                lasted = now - stood.ended_s >= outage.since
                began = now - stood.began_s if lasted else outage.since
                outage.stood_since = max(outage.stood_since, began)
            if worker not in outage.heard:
                outage.heard[worker] = now if stepped else None
            elif not stepped:
                outage.heard[worker] = None
            else:
                first = outage.heard[worker]
                if math.isfinite(outage.stood_since):
                    outage.since = min(outage.since, outage.stood_since)
                outage.stalled_s = max(0.0, (now if first is None else first) - outage.since)
                self._add(outage.since, outage.since + outage.stalled_s)
                outage.heard.clear()
        if stepped:
            self._stepped_at = now
            self._open = [each for each in self._open if each.stalled_s is None]
            if not self._open and self._span is not None:
                self.stalled_s += self._span[1] - self._span[0]
                self._span = None

    def _add(self, start: float, end: float) -> None:
        first, last = self._span or (start, end)
        self._span = min(first, start), max(last, end)

    def describe(self, status: pb.GetStatusResponse, wall_offset_s: float) -> None:
        """Add the losses and the outages to a status."""
        status.stalled_s = round(self.stalled_s, 3)
        for role, count in self.losses.items():
            status.losses.add(role=role, losses=count)
        for each in self.newest:
            since = each.since + wall_offset_s
            status.outages.add(
                event=each.event, time=each.time, since=since, stalled_s=each.stalled_s
            )

    # ---- a restart of the master ----

    def to_state(self, wall_offset_s: float) -> dict[str, Any]:
        """Return the state for a restarted master; times are Unix times."""
        return {
            "losses": self.losses,
            "stalled_s": self.stalled_s,
            "newest": [
                [o.event, o.time, o.since + wall_offset_s, o.stalled_s] for o in self.newest
            ],
        }

    def from_state(self, state: Mapping[str, Any], wall_offset_s: float) -> None:
        """Restore what :meth:`to_state` returned. Any worker may have made steps before."""
        self.losses = dict(state["losses"])
        self.stalled_s = state["stalled_s"]
        for event, time, since, stalled_s in state["newest"]:
            self.newest.append(Outage(event, time, since - wall_offset_s, stalled_s))
        self._open = [each for each in self.newest if each.stalled_s is None]

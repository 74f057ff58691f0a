"""Spans of records at which members of a ring died, and how often. Pure.

The members of a ring hold no leases, and a heartbeat reports a position that may be a second old.
The first death therefore shows only the approximate place. From then on, members report each span
of records before they read or compute the records (``ReportSpan``), until the training is well past
this place. A later death counts against the span that the dead member had reported.

The records of an update are divided among the members, so the spans change when the number of
members changes. Deaths are therefore added up if their spans have records in common. Members that
die in the same update have no records in common.

As with leased tasks, a SIGKILL of unknown cause counts only if it came soon after the member began
the span, see :mod:`master.state.work.suspects`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from master.state.work.suspects import AT_ONCE_S
from torch_edl.wire import master_pb2 as pb

Place = tuple[int, int]
"""Number of a pass, and position in the pass."""

# Members stop reporting spans when the training has been past the place of a death for this time,
# seconds. The place of the first death comes from a heartbeat, and is up to a second old.
_PAST_S = 10.0


@dataclass(frozen=True)
class Span:
    """Records that one member reads or computes."""

    pass_index: int
    first: int
    """Position of the first record in the pass."""
    last: int
    """Position after the last record."""
    name: str
    """Name of the records, for messages."""

    @property
    def end(self) -> Place:
        return self.pass_index, self.last

    def meets(self, other: Span) -> bool:
        """Return whether two spans have records in common."""
        same = self.pass_index == other.pass_index
        return same and self.first < other.last and other.first < self.last


@dataclass
class SuspectSpan:
    """Records at which members died, one after another."""

    span: Span
    """The smallest span at which a member died."""
    first: int
    """Position of the first record that the spans of all deaths have in common."""
    last: int
    """Position after the last such record."""
    deaths: int = 0

    def meets(self, span: Span) -> bool:
        return Span(self.span.pass_index, self.first, self.last, "").meets(span)

    def add(self, span: Span) -> None:
        """Count a death."""
        self.deaths += 1
        self.first, self.last = max(self.first, span.first), min(self.last, span.last)
        if span.last - span.first < self.span.last - self.span.first:
            self.span = span


class SuspectSpans:
    """The suspects in the data of a ring, and the spans that are left out."""

    def __init__(self) -> None:
        self.skipped: list[Span] = []
        """Spans that are left out of the training from now on."""
        self._suspects: list[SuspectSpan] = []
        self._reported: dict[int, tuple[Span, float]] = {}  # member -> its span, and since when
        self._heard: Place = (0, 0)  # farthest place that the training has reached
        # Farthest place of a death; None: members report no spans.
        self._until: Place | None = None
        self._past_since: float | None = None

    @property
    def watched(self) -> bool:
        """True if members are to report their spans."""
        return self._until is not None

    def ring_formed(self) -> None:
        """Forget what the members of the former ring were doing."""
        self._reported.clear()

    def report(self, request: pb.ReportSpanRequest, now: float) -> None:
        """Record the span that a member begins. An empty span only ends the previous one."""
        span = request.span
        self._reported.pop(request.worker_id, None)
        if span.first < span.last:
            begun = Span(request.pass_index, span.first, span.last, span.name)
            self._reported[request.worker_id] = begun, now

    def heard(self, heartbeat: pb.HeartbeatRequest, now: float) -> None:
        """Record the place of a member of the newest ring: all records before it are trained."""
        place = heartbeat.pass_index, heartbeat.position
        self._heard = max(self._heard, place)
        if self._until is None:
            return
        self._suspects = [each for each in self._suspects if each.span.end > place]
        if place <= self._until:
            self._past_since = None
        elif self._past_since is None:
            self._past_since = now
        elif now - self._past_since >= _PAST_S:
            self._until = self._past_since = None

    def died(self, worker: int, now: float, *, by_kill: bool) -> SuspectSpan | None:
        """Record that a member died. Returns the suspect against which the death counts; None if it
        counts against none.

        Args:
            by_kill: True if a SIGKILL of unknown cause ended the member.
        """
        span, since = self._reported.pop(worker, (None, 0.0))
        ends = [self._heard, *([span.end] if span else []), *filter(None, [self._until])]
        self._until, self._past_since = max(ends), None
        if span is None or (by_kill and now - since > AT_ONCE_S):
            return None
        suspect = next((each for each in self._suspects if each.meets(span)), None)
        if suspect is None:
            suspect = SuspectSpan(span, span.first, span.last)
            self._suspects.append(suspect)
        suspect.add(span)
        return suspect

    def skip(self, suspect: SuspectSpan) -> None:
        """Leave out the records of a suspect from now on."""
        self._suspects.remove(suspect)
        self.skipped.append(suspect.span)

    def begin_training(self) -> None:
        """Forget the places and suspects of the previous training of a script."""
        self._suspects, self._until, self._past_since = [], None, None
        self._heard = (0, 0)
        self._reported.clear()

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "suspects": [asdict(each) for each in self._suspects],
            "skipped": [asdict(each) for each in self.skipped],
            "heard": self._heard,
            "until": self._until,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._suspects = [
            SuspectSpan(**{**each, "span": Span(**each["span"])}) for each in state["suspects"]
        ]
        self.skipped = [Span(**each) for each in state["skipped"]]
        pass_index, position = state["heard"]
        self._heard = pass_index, position
        self._until = None if state["until"] is None else tuple(state["until"])

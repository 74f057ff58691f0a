"""Spans of records at which members of a ring died, and how often. Pure.

The members of a ring hold no leases, and heartbeats tell their position with a delay. Spans that
kill every member are therefore found in two steps. After the death of a member, the members of the
next rings report each span of records before they read or compute it (``ReportSpan``), until the
training is well past the place of the death. A later death counts against the span that the member
had reported. Deaths count together if their spans have records in common, because the records of an
update are divided among the members, whose number changes with each death. Members that die
together in one update have no records in common.

As with leased tasks, a SIGKILL of unknown cause counts only if it came soon after the span was
begun, see :mod:`master.state.work.suspects`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from master.state.work.suspects import AT_ONCE_S
from torch_edl.wire import master_pb2 as pb

Place = tuple[int, int]
"""Number of a pass, and position in the pass."""

# Seconds for which the training must be past the place of a death before members report no further
# spans. The place of the first death is known by a heartbeat, and up to a second old.
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
    """The smallest span of the deaths."""
    first: int
    """Position of the first record that all these spans have in common."""
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
        """Spans that are left out from now on."""
        self._suspects: list[SuspectSpan] = []
        self._reported: dict[int, tuple[Span, float]] = {}  # member -> its span, and since when
        self._heard: Place = (0, 0)  # farthest place of the training
        self._until: Place | None = None  # farthest place of a death; None: nothing is reported
        self._past_since: float | None = None

    @property
    def watched(self) -> bool:
        """True if members are to report their spans."""
        return self._until is not None

    def ring_formed(self) -> None:
        """Forget what the members of the former ring were doing."""
        self._reported.clear()

    def report(self, request: pb.ReportSpanRequest, now: float) -> None:
        """Record the span that a member begins; an empty one ends it."""
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
            by_kill: SIGKILL ended the member, and its cause is unknown.
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
        """Forget the places of the former training of a script."""
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

"""The lives of the processes of a job, one lane each from start to end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_edl.events import ProcessChanged, WorkerWaited

EXITED = "exited"
_ROLES = ("master", "ps", "worker")
# Processes that start together within this time are the first ones.
_TOGETHER_S = 30.0
_MOST_LANES = 48
_MOST_SEGMENTS = 12
_MOST_WAITS = 100


@dataclass
class Lane:
    """One process: its states, each with the time at which it began."""

    role: str
    id: int
    place: str = ""
    """What the process has and its replacement takes; empty if nothing is known."""
    segments: list[tuple[float, str]] = field(default_factory=list)
    """Start and state, such as ``(1.5, "worker running")``."""
    end: float | None = None
    """Time of the end; None while the process is alive."""
    exit: str = ""
    """How the process ended; empty while it is alive."""
    died: bool = False
    """True if the process was lost, or ended by itself with an error or by a signal."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Times from and to which a worker made no step."""

    @property
    def name(self) -> str:
        """Name of the process, such as ``worker-3``."""
        return f"{self.role}-{self.id}"

    def as_row(self) -> list[Any]:
        """Return the lane for the page."""
        kept = self.segments[-_MOST_SEGMENTS:]
        segments = [[round(start, 2), state] for start, state in kept]
        waits = [[round(start, 2), round(end, 2)] for start, end in self.waits[-_MOST_WAITS:]]
        return [self.name, segments, self.end, self.exit, self.died, waits]


class Lanes:
    """The lanes of all processes of a job."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, int], Lane] = {}
        self._seen: dict[tuple[str, int], tuple[str, int, str]] = {}
        self._lost: dict[tuple[str, int], tuple[float, str, bool]] = {}

    def place(self, name: str) -> tuple[str, str]:
        """Return role and place of a process."""
        role, _, number = name.rpartition("-")
        lane = self.all.get((role, int(number))) if number.isdecimal() else None
        return role, lane.place if lane is not None else ""

    def starts(self) -> dict[tuple[str, str], list[float]]:
        """Return the times at which processes began to run, in order, by role and place."""
        found: dict[tuple[str, str], list[float]] = {}
        for lane in self.all.values():
            runs = (start for start, state in lane.segments if state == f"{lane.role} running")
            found.setdefault((lane.role, lane.place), []).extend(runs)
        return {key: sorted(times) for key, times in found.items()}

    def changed(self, time: float, event: ProcessChanged) -> None:
        """Take in an event."""
        role, _, number = event.process.rpartition("-")
        self.note(
            time,
            role="spare" if event.is_spare else role,
            id=int(number),
            pid=event.pid,
            state=event.state,
            exit=event.exit,
            died=event.died,
            place=event.place,
        )

    def note(
        self,
        time: float,
        *,
        role: str,
        id: int,
        pid: int,
        state: str,
        exit: str,
        died: bool = False,
        place: str = "",
    ) -> None:
        """Note the state of a process at a time; a state that is known has no effect."""
        key = ("worker" if role == "spare" else role, id)
        if place and key in self.all:
            self.all[key].place = place
        if self._seen.get(key) == (role, pid, state):
            return
        self._seen[key] = (role, pid, state)
        lane = self.all.get(key)
        if lane is None:
            lane = self.all[key] = Lane(*key, place)
        if state == EXITED:
            if lane.end is None:
                lane.end = time
            lane.exit, lane.died = exit, died
            if not lane.segments:
                lane.segments.append((time, f"{role} starting"))
            self._settle(lane)
            return
        lane.end, lane.exit, lane.died = None, "", False  # a master may be started again
        lane.segments.append((time, f"{role} {state}"))

    def waited(self, time: float, event: WorkerWaited) -> None:
        """Take in the event that a worker made no step before a time."""
        number = event.process.rpartition("-")[2]
        lane = self.all.get(("worker", int(number)))
        if lane is not None:
            lane.waits.append((time - event.seconds, time))

    def lost(self, time: float, name: str, how: str, *, died: bool = True) -> None:
        """Note that the master saw the loss of a process, whose end may be noted later.

        Args:
            how: cause of the loss. A silent process is stopped after it was declared lost.
            died: False if the process was taken away.
        """
        role, _, number = name.rpartition("-")
        key = "worker" if role == "spare" else role, int(number)
        self._lost[key] = time, how, died
        if (lane := self.all.get(key)) is not None:
            self._settle(lane)

    def _settle(self, lane: Lane) -> None:
        """Set the end of a lost process to the time at which the master saw the loss."""
        found = self._lost.get((lane.role, lane.id))
        if lane.end is None or found is None:
            return
        time, how, died = self._lost.pop((lane.role, lane.id))
        lane.end, lane.died = min(time, lane.end), died
        while len(lane.segments) > 1 and lane.segments[-1][0] > time:
            lane.segments.pop()
        if how:
            lane.exit = how

    def close(self, time: float) -> None:
        """End all lanes of a job that is over."""
        for lane in self.all.values():
            if lane.end is None:
                lane.end, lane.exit = time, "stopped"

    def deaths(self) -> int:
        """Return the number of processes that died."""
        return sum(lane.died for lane in self.all.values())

    def shown(self, most: int = _MOST_LANES) -> dict[str, Any]:
        """Return the lanes to show: all masters and servers that fit, the workers with a story,
        and the number of those without one.

        A worker without a story started with the first ones, and runs or ended as it should.
        """
        every = sorted(self.all.values(), key=lambda lane: (_order(lane), lane.id))
        if len(every) <= most:
            return {"rows": [lane.as_row() for lane in every], "plain": 0, "hidden": 0}
        began = min((lane.segments[0][0] for lane in every if lane.segments), default=0.0)
        plain: list[Lane] = []
        eventful: list[Lane] = []
        for lane in every:
            first = lane.segments[0][0] - began <= _TOGETHER_S
            is_plain = first and not lane.died and lane.role not in ("master", "ps")
            (plain if is_plain else eventful).append(lane)
        # The master, then the lanes in which something happened last.
        latest = sorted(eventful, key=lambda lane: (lane.role != "master", -_last(lane)))[:most]
        rows = sorted(latest, key=lambda lane: (_order(lane), lane.id))
        return {
            "rows": [lane.as_row() for lane in rows],
            "plain": len(plain),
            "plain_since": min((lane.segments[0][0] for lane in plain), default=0.0),
            "hidden": len(eventful) - len(rows),
        }


def _order(lane: Lane) -> int:
    return _ROLES.index(lane.role) if lane.role in _ROLES else len(_ROLES)


def _last(lane: Lane) -> float:
    return lane.end if lane.end is not None else lane.segments[-1][0]

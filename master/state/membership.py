"""Which workers there are, and which of them still live. Pure."""

from __future__ import annotations

import itertools
import math
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_edl.wire import master_pb2 as pb

_NOTHING_TOLD = pb.HeartbeatRequest(phase="importing")


@dataclass
class Member:
    """One worker as its heartbeats describe it."""

    id: int
    pid: int
    last_heartbeat: float
    heartbeat: pb.HeartbeatRequest = field(default_factory=lambda: _NOTHING_TOLD)
    """Its last heartbeat."""
    loss: float = math.nan
    """Mean of its last interval that had one."""
    logged: dict[str, float] = field(default_factory=dict)
    """What a script noted, by name: the mean of its last interval that had it."""
    reported_steps: int = 0
    """Of the steps that the heartbeat counts, those in reports of tasks."""
    reported_records: int = 0
    draining: bool = False
    """It has been asked to finish what it does and leave."""
    stacks: str = ""
    """The stacks of its threads, when it told them last."""
    stacks_told: int = 0
    """The number of the request that they answer; 0: it told none."""
    stacks_asked: int = 0
    """The number of the newest request for its stacks."""

    def ask_stacks(self, number: int = 0) -> None:
        """Asks the worker for the stacks of its threads, under a number or the next one."""
        self.stacks_asked = max(number, self.stacks_asked + (not number))

    @property
    def newest_stacks(self) -> str:
        """The answer to the newest request; empty: there is none."""
        return self.stacks if self.stacks_told == self.stacks_asked else ""


class Membership:
    """The workers that registered and have neither left nor been declared lost.

    Ids are never used again, so a message of a worker that is gone cannot be taken for another's.
    """

    def __init__(self, *, heartbeat_timeout_s: float) -> None:
        self._timeout_s = heartbeat_timeout_s
        self._members: dict[int, Member] = {}
        self._heard: dict[int, None] = {}  # ids in the order in which they were heard last
        self._moved: set[int] = set()
        self._gone: set[int] = set()
        self._last_loss = math.nan
        self._last_logged: dict[str, float] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, id: int) -> bool:
        return id in self._members

    def get(self, id: int) -> Member | None:
        """The worker, if it is one of the living."""
        return self._members.get(id)

    def register(self, id: int, pid: int, now: float) -> Member | None:
        """Takes a worker in, again if its first answer was lost; None if the worker is gone."""
        if id in self._gone:
            return None
        member = self._members.get(id)
        if member is None:
            member = Member(id, pid, now)
            self._members[id] = member
        self._hear(member, now)
        return member

    def _hear(self, member: Member, now: float) -> None:
        member.last_heartbeat = now
        self._heard.pop(member.id, None)
        self._heard[member.id] = None

    def heartbeat(self, member: Member, heartbeat: pb.HeartbeatRequest, now: float) -> bool:
        """The worker lives. Returns whether the worker made progress."""
        if heartbeat.stacks:
            member.stacks, member.stacks_told = heartbeat.stacks, heartbeat.stacks_number
            heartbeat.ClearField("stacks")
        before, member.heartbeat = member.heartbeat, heartbeat
        self._hear(member, now)
        self._moved.add(member.id)
        # NaN is the loss itself, where a script logged it.
        if "loss" in heartbeat.logged or not math.isnan(heartbeat.loss):
            member.loss = heartbeat.loss
        member.logged.update(heartbeat.logged)
        return _progress(before) != _progress(heartbeat)

    def reported(self, id: int, now: float, *, steps: int, records: int) -> None:
        """The worker reported a task with so many of its minibatches and records."""
        member = self._members.get(id)
        if member is not None:
            member.reported_steps += steps
            member.reported_records += records
            self._hear(member, now)
            self._moved.add(id)

    def take_moved(self) -> set[int]:
        """Workers whose counts may have changed since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    def remove(self, id: int) -> None:
        """The worker is gone; it will not be heard again."""
        self._gone.add(id)
        member = self._members.pop(id, None)
        if member is None:
            return
        del self._heard[id]
        self._moved.add(id)
        # What others report counts, as long as there are others that do.
        others = self._members.values()
        if not math.isnan(member.loss) and all(math.isnan(other.loss) for other in others):
            self._last_loss = member.loss
        for name, value in member.logged.items():
            if not any(name in other.logged for other in others):
                self._last_logged[name] = value

    def silent(self, now: float) -> Sequence[Member]:
        """Workers whose last heartbeat is a timeout ago or more."""
        heard = (self._members[id] for id in self._heard)
        found = itertools.takewhile(lambda m: now - m.last_heartbeat >= self._timeout_s, heard)
        return sorted(found, key=lambda member: member.id)

    def forget_open_work(self) -> None:
        """What workers did and did not report yet is void."""
        for member in self._members.values():
            member.reported_steps = member.heartbeat.steps
            member.reported_records = member.heartbeat.records
        self._moved.update(self._members)

    def loss(self) -> float:
        """Mean over the workers that reported a loss, or the last mean before they left; NaN if
        none ever did."""
        losses = [m.loss for m in self._members.values() if not math.isnan(m.loss)]
        return sum(losses) / len(losses) if losses else self._last_loss

    def last_words(self, *, loss: float, logged: Mapping[str, float]) -> None:
        """Values that a worker logged before it left, and reported afterwards."""
        self._last_logged.update(logged)
        if not math.isnan(loss):
            self._last_loss = loss

    def logged(self) -> dict[str, float]:
        """What scripts noted, by name, as :meth:`loss`."""
        values: dict[str, list[float]] = {}
        for member in self._members.values():
            for name, value in member.logged.items():
                values.setdefault(name, []).append(value)
        return {**self._last_logged, **{n: sum(of) / len(of) for n, of in values.items()}}

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it; heartbeats bring the rest."""
        return {
            "members": [
                {
                    "id": m.id,
                    "pid": m.pid,
                    "draining": m.draining,
                    "reported": [m.reported_steps, m.reported_records],
                    # As its bytes: a dictionary takes fifty times as long, once a second each.
                    "heartbeat": b64encode(m.heartbeat.SerializeToString()).decode(),
                }
                for m in self
            ],
            "gone": sorted(self._gone),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """The inverse of :meth:`to_state`; every worker counts as heard now."""
        self._gone = set(state["gone"])
        for saved in state["members"]:
            member = self.register(saved["id"], saved["pid"], now)
            assert member is not None, "one that is gone is no member"
            member.draining = saved["draining"]
            member.reported_steps, member.reported_records = saved["reported"]
            told = pb.HeartbeatRequest.FromString(b64decode(saved["heartbeat"]))
            self.heartbeat(member, told, now)


def _progress(heartbeat: pb.HeartbeatRequest) -> tuple[str, int, int]:
    return heartbeat.phase, heartbeat.steps, heartbeat.records

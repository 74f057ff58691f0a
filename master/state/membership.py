"""Which workers there are, and which of them still live. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_edl.wire import master_pb2 as pb


@dataclass
class Member:
    """One worker as it last told of itself."""

    id: int
    pid: int
    host: str
    last_heartbeat: float
    last_progress: float
    """When its phase, steps or records last changed."""
    phase: str = "importing"
    steps: int = 0
    """Minibatches since it started."""
    records: int = 0
    loss: float = math.nan
    """Mean of its last interval that had one."""
    reported_steps: int = 0
    """Of ``steps``, those in reports of tasks."""
    reported_records: int = 0
    version: int = 0
    """Updates that its model has had."""
    ring: int = 0
    """That it is in; 0: none."""
    position: int = 0
    """Records of the pass that are in its model, if it is in a ring."""
    data_pass: int = 0
    pass_records: int = 0
    damaged: int = 0
    """Samples that it left out since it started."""
    epoch: int = 0
    """Of a script: its epochs that are over."""
    epochs: int = 0
    records_before: int = 0
    records_to_come: int = 0
    logged: dict[str, float] = field(default_factory=dict)
    """What a script noted, by name: the mean of its last interval that had it."""
    draining: bool = False
    """It has been asked to finish what it does and leave."""


class Membership:
    """The workers that registered and have neither left nor been declared lost.

    Ids are never used again, so a message of a worker that is gone cannot be taken for another's.
    """

    def __init__(self, *, heartbeat_timeout_s: float) -> None:
        self._timeout_s = heartbeat_timeout_s
        self._members: dict[int, Member] = {}
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

    def register(self, id: int, pid: int, host: str, now: float) -> Member | None:
        """Takes a worker in, again if its first answer was lost; None if the worker is gone."""
        if id in self._gone:
            return None
        member = self._members.get(id)
        if member is None:
            member = Member(id, pid, host, now, now)
            self._members[id] = member
        member.last_heartbeat = now
        return member

    def heartbeat(self, member: Member, request: pb.HeartbeatRequest, now: float) -> bool:
        """The worker lives. Returns whether the worker made progress."""
        told = (request.phase, request.steps, request.records)
        moved = told != (member.phase, member.steps, member.records)
        member.last_heartbeat = now
        member.phase, member.steps, member.records = told
        if not math.isnan(request.loss):
            member.loss = request.loss
        member.version, member.ring, member.damaged = request.version, request.ring, request.damaged
        member.data_pass = request.pass_index
        member.position, member.pass_records = request.position, request.pass_records
        member.epoch, member.epochs = request.epoch, request.epochs
        member.records_before = request.records_before
        member.records_to_come = request.records_to_come
        member.logged.update(request.logged)
        if moved:
            member.last_progress = now
        return moved

    def reported(self, id: int, now: float, *, steps: int, records: int) -> None:
        """The worker reported a task with so many of its minibatches and records."""
        member = self._members.get(id)
        if member is not None:
            member.reported_steps += steps
            member.reported_records += records
            member.last_heartbeat = member.last_progress = now

    def drain(self, id: int) -> None:
        """Notes a worker as one that is to leave."""
        member = self._members.get(id)
        if member is not None:
            member.draining = True

    def remove(self, id: int) -> Member | None:
        """The worker is gone; it will not be heard again."""
        self._gone.add(id)
        self._last_loss, self._last_logged = self.loss(), self.logged()
        return self._members.pop(id, None)

    def silent(self, now: float) -> Sequence[Member]:
        """Workers whose last heartbeat is a timeout ago or more."""
        return [m for m in self._members.values() if now - m.last_heartbeat >= self._timeout_s]

    def forget_open_work(self) -> None:
        """What workers did and did not report yet is void."""
        for member in self._members.values():
            member.reported_steps, member.reported_records = member.steps, member.records

    def loss(self) -> float:
        """Mean over the workers that told of a loss, or that did before the last one left; NaN if
        none ever did."""
        losses = [m.loss for m in self._members.values() if not math.isnan(m.loss)]
        return sum(losses) / len(losses) if losses else self._last_loss

    def last_words(self, *, loss: float, logged: Mapping[str, float]) -> None:
        """What a worker noted before it left, told after it."""
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

    def to_state(self) -> list[dict[str, Any]]:
        """What a restarted master needs, as JSON can say it; heartbeats bring the rest."""
        return [{"id": m.id, "pid": m.pid, "host": m.host} for m in self]

    def from_state(self, state: Sequence[Mapping[str, Any]], now: float) -> None:
        """The inverse of :meth:`to_state`; every worker counts as heard now."""
        for saved in state:
            self.register(saved["id"], saved["pid"], saved["host"], now)

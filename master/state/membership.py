"""The registered workers, their heartbeats and their losses. Pure."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch_edl.wire import master_pb2 as pb

# Phases of a worker in its training loop, which makes a step or waits for one.
_LOOP = frozenset({"training", "waiting", "reconnecting"})
# A worker without a step waits above both limits: seconds, and multiples of its usual step.
_WAITS_S, _WAITS_STEPS = 3.0, 4
_NOTHING_TOLD = pb.HeartbeatRequest(phase="importing", loss=math.nan)


class Preemption(NamedTuple):
    """What the preemption of a worker cost."""

    took_s: float
    """Seconds from the notice to the end of the worker."""
    records_again: int
    """Records that the worker had trained, and that are trained again."""


@dataclass
class Member:
    """One worker as its heartbeats describe it."""

    id: int
    pid: int
    last_heartbeat: float
    """Time of the last message of the worker."""
    stepped_at: float
    """Time of the last heartbeat that reported a step, or that followed a heartbeat from outside
    the training loop."""
    step_s: float = 0.0
    """Seconds that a step of the worker usually takes; 0 before its first."""
    heartbeat: pb.HeartbeatRequest = field(default_factory=lambda: _NOTHING_TOLD)
    """The newest heartbeat."""
    usage: pb.Usage | None = None
    """What the process and its machine used at the last heartbeat; None before the first."""
    loss: float = math.nan
    """Mean loss of the newest interval that reported one; NaN before the first."""
    logged: dict[str, float] = field(default_factory=dict)
    """Values that a script logged, by name: the mean of the newest interval that reported each."""
    reported_steps: int = 0
    """Minibatches of ``heartbeat.steps`` that task reports have already covered."""
    reported_records: int = 0
    """Records of ``heartbeat.records`` that task reports have already covered."""
    draining: bool = False
    """True if the worker was asked to finish its work and leave."""
    asked_at: float = 0.0
    """Time at which the worker reported SIGTERM or a notice; 0 before."""
    stacks: str = ""
    """Newest stacks of the worker's threads; empty before the first."""
    stacks_told: int = 0
    """Number of the request that :attr:`stacks` answers."""
    stacks_asked: int = 0
    """Number of the newest request for stacks."""

    def ask_stacks(self, number: int = 0) -> None:
        """Request the stacks of the worker's threads under ``number``, or the next one if 0."""
        self.stacks_asked = max(number, self.stacks_asked + (not number))

    def waits_s(self, now: float) -> float:
        """Return the seconds for which a worker in its training loop has made no step; 0 outside
        the loop, and while the time is not longer than its steps usually take."""
        since_s = now - self.stepped_at
        usual = since_s <= max(_WAITS_S, _WAITS_STEPS * self.step_s)
        return 0.0 if usual or self.heartbeat.phase not in _LOOP else since_s

    def took_steps(self, count: int, now: float) -> None:
        """Record that a heartbeat reported new steps."""
        took_s = (now - self.stepped_at) / count
        if self.step_s:
            took_s = min(took_s, 2 * max(self.step_s, 1.0))  # one wait is not the usual time
        self.step_s += (took_s - self.step_s) * (0.2 if self.step_s else 1.0)
        self.stepped_at = now

    def cost(self, now: float, *, in_ring: bool) -> Preemption | None:
        """Return what the preemption of the worker cost, which ended at ``now``; None if the
        worker got no notice. Records of which no report arrived are trained again, unless the
        other members of its ring have them."""
        if not self.heartbeat.notice:
            return None
        again = 0 if in_ring else max(0, self.heartbeat.records - self.reported_records)
        return Preemption(now - self.asked_at, again)

    @property
    def newest_stacks(self) -> str:
        """The answer to the newest request for stacks; empty before it arrives."""
        return self.stacks if self.stacks_told == self.stacks_asked else ""


class Membership:
    """The workers that registered and have neither left nor been declared lost.

    Ids are not reused, so a late message of a lost worker is not attributed to another worker. Only
    the process of a script may return, after it has left a training.
    """

    def __init__(self, *, heartbeat_timeout_s: float) -> None:
        self._timeout_s = heartbeat_timeout_s
        self._members: dict[int, Member] = {}
        self._moved: set[int] = set()
        self._gone: set[int] = set()
        self._last_loss = math.nan
        self._last_logged: dict[str, float] = {}
        self.loss_warned = False
        """True once the user was warned of a loss that is not finite."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, id: int) -> bool:
        return id in self._members

    def get(self, id: int) -> Member | None:
        return self._members.get(id)

    def register(self, id: int, pid: int, now: float) -> Member | None:
        """Add a worker and return it, also on a repeated call; None if it was removed before."""
        if id in self._gone:
            return None
        member = self._members.get(id)
        if member is None:
            member = Member(id, pid, now, now)
            self._members[id] = member
        member.last_heartbeat = now
        return member

    def heartbeat(self, member: Member, heartbeat: pb.HeartbeatRequest, now: float) -> bool:
        """Record a heartbeat of a member. Returns whether the worker made progress."""
        if heartbeat.stacks:
            member.stacks, member.stacks_told = heartbeat.stacks, heartbeat.stacks_number
            heartbeat.ClearField("stacks")
        if heartbeat.HasField("usage"):  # not stored for a restarted master
            member.usage = heartbeat.usage
            heartbeat.ClearField("usage")
        before, member.heartbeat = member.heartbeat, heartbeat
        member.last_heartbeat = now
        if before.phase not in _LOOP:
            member.stepped_at = now
        elif heartbeat.steps > before.steps:
            member.took_steps(heartbeat.steps - before.steps, now)
        self._moved.add(member.id)
        # A NaN that a script logged is its loss; otherwise NaN means that no loss was reported.
        if "loss" in heartbeat.logged or not math.isnan(heartbeat.loss):
            member.loss = heartbeat.loss
        member.logged.update(heartbeat.logged)
        return _progress(before) != _progress(heartbeat)

    def reported(self, id: int, now: float, *, steps: int, records: int) -> None:
        member = self._members.get(id)
        if member is not None:
            member.reported_steps += steps
            member.reported_records += records
            member.last_heartbeat = now
            self._moved.add(id)

    def take_moved(self) -> set[int]:
        """Return the workers whose counts may have changed since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    def remove(self, id: int) -> None:
        """Remove a worker that left or was lost; it cannot register again."""
        self._gone.add(id)
        member = self._members.pop(id, None)
        if member is None:
            return
        self._moved.add(id)
        self.last_words(loss=member.loss, logged=member.logged)

    def readmit(self, id: int) -> None:
        """Allow a worker that was removed to register again."""
        self._gone.discard(id)

    def staying(self) -> set[int]:
        """Return the ids of the workers that were not asked to leave."""
        return {member.id for member in self._members.values() if not member.draining}

    def silent(self, now: float) -> Sequence[Member]:
        """Return the workers whose last heartbeat is at least one timeout old, ordered by id."""
        found = (m for m in self if now - m.last_heartbeat >= self._timeout_s)
        return sorted(found, key=lambda member: member.id)

    def forget_open_work(self) -> None:
        """Mark all work counted in heartbeats as reported: work that was not reported is void."""
        for member in self._members.values():
            member.reported_steps = member.heartbeat.steps
            member.reported_records = member.heartbeat.records
        self._moved.update(self._members)

    def loss(self) -> float:
        """Return the mean of the members' losses, else the last loss before they left, or NaN."""
        losses = [m.loss for m in self._members.values() if not math.isnan(m.loss)]
        return sum(losses) / len(losses) if losses else self._last_loss

    def last_words(self, *, loss: float, logged: Mapping[str, float]) -> None:
        """Record the last values of a worker, which are shown if no member reports any."""
        self._last_logged.update(logged)
        if not math.isnan(loss):
            self._last_loss = loss

    def logged(self) -> dict[str, float]:
        """Return the logged values by name, each averaged over members like :meth:`loss`."""
        values: dict[str, list[float]] = {}
        for member in self._members.values():
            for name, value in member.logged.items():
                values.setdefault(name, []).append(value)
        return {**self._last_logged, **{n: sum(of) / len(of) for n, of in values.items()}}

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "members": [
                {
                    "id": m.id,
                    "pid": m.pid,
                    "draining": m.draining,
                    "reported": [m.reported_steps, m.reported_records],
                    # Serialized bytes: a dictionary takes fifty times as long, for each worker once
                    # a second.
                    "heartbeat": b64encode(m.heartbeat.SerializeToString()).decode(),
                }
                for m in self
            ],
            "gone": sorted(self._gone),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._gone = set(state["gone"])
        for saved in state["members"]:
            member = self.register(saved["id"], saved["pid"], now)
            assert member is not None, "one that is gone is no member"
            member.draining, member.asked_at = saved["draining"], now
            member.reported_steps, member.reported_records = saved["reported"]
            told = pb.HeartbeatRequest.FromString(b64decode(saved["heartbeat"]))
            self.heartbeat(member, told, now)


def _progress(heartbeat: pb.HeartbeatRequest) -> tuple[str, int, int]:
    return heartbeat.phase, heartbeat.steps, heartbeat.records

"""Rings of the strategy ``allreduce``, whose members train in lockstep. Pure.

A ring has a number, which grows from ring to ring, and members in the order of their ranks. The
members of a ring never change: when one dies or leaves, or a worker wants to join, the living
members ask to join the next ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from torch_edl.wire import master_pb2 as pb

# Seconds without a new worker after which the first ring of a model is formed.
PATIENCE_S = 0.5
# Seconds after the first member asked or left at which the ring counts as broken. By then, members
# in the same step have finished it; a member that hangs in a later step learns it by a heartbeat.
GRACE_S = 1.0


@dataclass(frozen=True)
class _Asked:
    worker: int
    step: int
    store: str
    survivor: bool
    rank: int = 0


class Ring:
    """The newest ring, and the workers that have asked to join the next one."""

    def __init__(self) -> None:
        self.current: pb.Ring | None = None
        """Newest ring; None before the first."""
        self.finished = False
        """True once the script of a member has ended; no other worker may join."""
        self._formed = 0  # number of the newest ring of all trainings
        self._living: set[int] = set()  # members of the current ring, neither dropped nor left
        self._asked: dict[int, _Asked] = {}
        self._reserve: dict[int, _Asked] = {}  # members at the end of their script, with a model
        self._left: set[int] = set()
        self._claims: set[int] = set()  # left, possibly at the end of their script
        self._lost = False  # the current ring lost a member
        self._shrinks = False  # a member left the current ring before the end
        self._ended_at: float | None = None  # when a member first asked or left
        self._last_asked = 0.0

    # ---- the state of the ring ----

    @property
    def number(self) -> int:
        """Number of the newest ring of the current training; 0 before the first."""
        return self.current.number if self.current is not None else 0

    def includes(self, worker: int) -> bool:
        """Return whether a worker was a member of the newest ring when it was formed."""
        return self.current is not None and worker in self.current.workers

    def leads(self, worker: int) -> bool:
        """Return whether a worker is rank 0 of the newest ring, which writes checkpoints."""
        return self.current is not None and self.current.workers[0] == worker

    def living(self) -> frozenset[int]:
        """Return the members of the newest ring that were not dropped and have not left."""
        return frozenset(self._living)

    @property
    def left(self) -> frozenset[int]:
        """Workers that will join no further ring."""
        return frozenset(self._left)

    @property
    def waiting(self) -> int:
        return len(self._asked)

    @property
    def occupied(self) -> bool:
        """True if a worker is in the ring, or keeps its model at the end of its script."""
        return bool(self._living or self._reserve)

    @property
    def awaits_exits(self) -> bool:
        """True if a worker has left, possibly at the end of its script, and its process has not
        ended."""
        return bool(self._claims)

    def wanted(self, worker: int) -> bool:
        """Return whether a worker may ask: it has not left, and is a member if a script has
        ended."""
        return worker not in self._left and (not self.finished or worker in self._living)

    def broken(self, now: float) -> int:
        """Return the ring's number if it lost a member or is past its grace period, else 0."""
        late = self._ended_at is not None and now - self._ended_at >= GRACE_S
        return self.number if self._lost or late else 0

    def stale(self) -> int:
        """Return the ring's number if a worker joins or left: its next step is the last; else 0."""
        joiner = any(worker not in self._living for worker in self._asked)
        return self.number if joiner or self._shrinks else 0

    def keeps_model(self, worker: int) -> bool:
        """Return whether a worker at the end of its script is the only process with the model."""
        return not self._living and self._reserve.keys() == {worker}

    def may_drain(self, worker: int, staying: set[int]) -> bool:
        """Return whether a worker can leave without loss of the model, which the members among the
        ``staying`` workers have."""
        if self.keeps_model(worker):
            return False
        return worker not in self._living or bool((self._living - {worker}) & staying)

    @property
    def abandoned(self) -> bool:
        """True if workers at the end of their script wait for a rank 0 that is lost."""
        others = self._living or self._claims or self._asked or self.finished
        return bool(self._reserve) and not others

    def due(self, now: float, *, min_workers: int, max_workers: int) -> bool:
        """Return whether the next ring can be formed."""
        if not self._asked or not self._living <= self._asked.keys():
            return False
        if any(asked.survivor for asked in self._asked.values()):
            return True
        if self._claims:
            return False  # wait for the exit codes: the script may be over
        if self._reserve:
            return True
        if len(self._asked) < min_workers:
            return False
        return len(self._asked) >= max_workers or now - self._last_asked >= PATIENCE_S

    @property
    def model_lost(self) -> bool:
        """True if no worker that waits or is at the end of its script has the model."""
        lost = not self._reserve and not any(a.survivor for a in self._asked.values())
        return self.current is not None and lost

    # ---- what happens ----

    def ask(
        self, worker: int, ring: int, step: int, store: str, now: float, *, rank: int = 0
    ) -> pb.Ring | None:
        """Record that a worker, whose last ring was ``ring``, asks to join the next one. Workers
        that join are ordered by ``rank`` (``RANK`` of their processes), then by their ids.

        Returns the newest ring if the worker is a member of it, since its answer was lost or the
        request is late; None while the worker waits.
        """
        assert self.wanted(worker)
        member = worker in self._living
        if member and ring < self.number:
            return self.current
        if worker not in self._asked:
            self._last_asked = now
        survivor = member and ring == self.number and step >= 0
        self._asked[worker] = _Asked(worker, step, store, survivor, rank)
        if member and self._ended_at is None:
            self._ended_at = now
        return None

    def form(self, *, restored_from: str = "", values_only: bool = False) -> pb.Ring:
        """Form the next ring from all workers that asked.

        Args:
            restored_from: checkpoint or exported model to restore from, if no worker has the model.
            values_only: restore neither the optimizer's state nor the position.
        """
        assert self._asked
        assert self._living <= self._asked.keys()
        before = list(self.current.workers) if self.current is not None else []
        survivors = sorted(
            (asked for asked in self._asked.values() if asked.survivor),
            key=lambda asked: before.index(asked.worker),
        )
        joiners = sorted(
            (asked for asked in self._asked.values() if not asked.survivor),
            key=lambda asked: (asked.rank, asked.worker),
        )
        if not survivors and self._reserve:
            # The giver's script has ended: it only passes its model on, and has the last rank.
            giver = max(self._reserve.values(), key=lambda asked: asked.step)
            del self._reserve[giver.worker]
            survivors, members = [giver], [*joiners, giver]
        else:
            members = survivors + joiners
        fresh = not survivors
        step = max((asked.step for asked in survivors), default=0)
        source = 0 if fresh else [(a.survivor, a.step) for a in members].index((True, step))
        self._formed += 1
        self.current = pb.Ring(
            number=self._formed,
            workers=[asked.worker for asked in members],
            store=members[0].store,
            source=source,
            heal=bool(joiners) or any(asked.step != step for asked in survivors),
            fresh=fresh,
            restored_from=restored_from if fresh else "",
            values_only=values_only if fresh else False,
        )
        self._living = set(self.current.workers)
        self._asked = {}
        self._lost = self._shrinks = False
        self._ended_at = None
        return self.current

    def stand_by(self, worker: int, ring: int, step: int, store: str, now: float) -> pb.Ring | None:
        """Remove a member at the end of its script, which keeps its model for workers that join
        later. Returns the ring in which it passes its model on; None while it waits."""
        if worker in self._living and ring < self.number:
            return self.current
        if worker in self._living and step >= 0:
            self._reserve[worker] = _Asked(worker, step, store, survivor=True)
        self._asked.pop(worker, None)
        self._remove(worker, now)
        return None

    def leave(self, worker: int, now: float, *, finished: bool = False, ends: bool = False) -> None:
        """Remove a worker that leaves and will not ask again.

        Args:
            finished: the worker reports the end of its script.
            ends: the worker was not asked to leave; the exit code of its process will show whether
                its script has ended.
        """
        self._left.add(worker)
        self._asked.pop(worker, None)
        self._reserve.pop(worker, None)
        if finished or ends:
            self._claims.add(worker)
        if worker in self._living and not finished:
            self._shrinks = True
        self._remove(worker, now)

    def exited(self, worker: int, *, well: bool) -> None:
        """Record the exit of a worker's process: ``well`` if its exit code was 0 without a request
        to leave. If its script had ended, no other worker may join."""
        over = worker in self._claims or worker in self._living  # its last call may be lost
        self._claims.discard(worker)
        if over and well:
            self.finished = True
            self._asked = {id: a for id, a in self._asked.items() if id in self._living}

    def _remove(self, worker: int, now: float) -> None:
        if worker in self._living:
            self._living.remove(worker)
            self._ended_at = now if self._ended_at is None else self._ended_at

    def drop(self, worker: int) -> None:
        self._asked.pop(worker, None)
        self._claims.discard(worker)
        self._reserve.pop(worker, None)
        if worker in self._living:
            self._living.remove(worker)
            self._lost = True

    def readmit(self, worker: int) -> None:
        """Allow a worker that has left to ask again."""
        self._left.discard(worker)

    def begin_training(self) -> None:
        """Begin the rings of another model, without members. The numbers of rings continue."""
        assert not self.occupied
        self.current, self.finished = None, False
        self._asked, self._claims = {}, set()
        self._lost = self._shrinks = False
        self._ended_at = None

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "formed": self._formed,
            "current": None if self.current is None else MessageToDict(self.current),
            "living": sorted(self._living),
            "left": sorted(self._left),
            "claims": sorted(self._claims),
            "reserve": [asdict(asked) for asked in self._reserve.values()],
            "finished": self.finished,
            "lost": self._lost,
            "shrinks": self._shrinks,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._formed = state["formed"]
        if state["current"] is not None:
            self.current = ParseDict(state["current"], pb.Ring())
        self._living = set(state["living"])
        self._left = set(state["left"])
        self._claims = set(state["claims"])
        self._reserve = {each["worker"]: _Asked(**each) for each in state["reserve"]}
        self.finished = state["finished"]
        self._lost = state["lost"]
        self._shrinks = state["shrinks"]

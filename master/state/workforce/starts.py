"""New processes: their numbers, their slots, and the machines to avoid. Pure."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from master.state.actions import Start
from master.state.workforce.processes import PENDING, STARTING, Process
from torch_edl.events import MachineAvoided
from torch_edl.processes.launcher import Command, ProcessSpec

P = TypeVar("P", bound=Process)

SCRIPT = "script"
"""Name of the script for which the nodes were started, where a module is expected."""

# Losses within the given seconds after which a machine is avoided; older losses are forgotten.
_LOSSES = 3
_WITHIN_S = 600.0
# Number of machines that are remembered: those with the newest losses.
_REMEMBERED = 1000


class Machines:
    """Losses of processes by machine. Preempted processes, and those asked to leave, do not
    count."""

    def __init__(self) -> None:
        self._losses: dict[str, deque[float]] = {}

    def lost(self, machine: str, text: str, now: float) -> list[MachineAvoided]:
        """Record that a machine lost a process. Returns a warning if the machine is avoided from
        now on."""
        if not machine:
            return []
        losses = self._losses.pop(machine, None) or deque(maxlen=_LOSSES)
        before = self._is_avoided(losses, now)
        losses.append(now)
        self._losses[machine] = losses
        while len(self._losses) > _REMEMBERED:
            del self._losses[next(iter(self._losses))]
        if before or not self._is_avoided(losses, now):
            return []
        return [MachineAvoided(host=machine, losses=_LOSSES, within_s=_WITHIN_S, last=text)]

    def avoid(self, machine: str, now: float) -> None:
        """Avoid a machine from now on, as if it had lost processes."""
        if machine:
            self._losses.pop(machine, None)
            self._losses[machine] = deque([now] * _LOSSES, maxlen=_LOSSES)

    def avoided(self, now: float) -> tuple[str, ...]:
        """Return the machines to use only if no other has room, the newest loss first."""
        found = [name for name, losses in self._losses.items() if self._is_avoided(losses, now)]
        return tuple(reversed(found))

    @staticmethod
    def _is_avoided(losses: deque[float], now: float) -> bool:
        return len(losses) == _LOSSES and now - losses[0] < _WITHIN_S


class Starts:
    """Makes the processes of a fleet, each with a number that was never used for its role.

    Slots are numbers from 0 on; a new process takes the lowest free one.

    Args:
        is_scheduled: processes may stay pending until a machine has room.
        in_pods: processes run in pods.
        workers_per_pod: number of neighbouring slots that share a pod.
    """

    def __init__(self, *, is_scheduled: bool, in_pods: bool, workers_per_pod: int = 1) -> None:
        self.env: dict[str, str] = {}
        """Environment variables of all processes."""
        self.machines = Machines()
        self.in_pods = in_pods
        self._first_state = PENDING if is_scheduled else STARTING
        self._per_pod = workers_per_pod
        self._next_id: dict[str, int] = {}

    def next_id(self, role: str) -> int:
        """Return the number of the next process of a role."""
        return self._next_id.get(role, 0)

    def make(
        self,
        kind: type[P],
        module: str,
        args: Sequence[str],
        now: float,
        *,
        slot: int = -1,
        pod: str = "",
        apart: Sequence[int] = (),
    ) -> tuple[P, Start]:
        """Return a new process, and the action that starts it.

        Args:
            pod: existing pod in which the process starts; empty: a pod is created on a cluster.
            apart: processes of the same role that should run on other machines.
        """
        id = self.next_id(kind.role)
        self._next_id[kind.role] = id + 1
        pod = pod or (f"{kind.role}-{id}" if self.in_pods else "")
        process = kind(id, state=self._first_state, started_at=now, slot=slot, pod=pod)
        return process, self.start(process, module, args, now, apart=apart)

    def start(
        self,
        process: Process,
        module: str,
        args: Sequence[str],
        now: float,
        *,
        apart: Sequence[int] = (),
    ) -> Start:
        """Return the action that starts a process: ``python -m module *args``, only its pod if
        there is no module, or the user's script for :data:`SCRIPT`."""
        spec = ProcessSpec(
            role=process.role,
            id=process.id,
            module="" if module == SCRIPT else module,
            args=args,
            command=Command() if module == SCRIPT else None,
            env=dict(self.env),
            slot=process.slot,
            pod=process.pod,
            avoid=self.machines.avoided(now),
            apart=apart,
        )
        return Start(spec)

    def pod_of_neighbours(self, slot: int, staying: Iterable[Process]) -> str:
        """Return the pod of the workers that stay next to a slot; empty if there are none. A pod
        ends once all its processes leave."""
        neighbours = slot // self._per_pod
        return next((p.pod for p in staying if p.slot // self._per_pod == neighbours), "")

    def beyond(self, wanted: int, staying: Sequence[P]) -> list[P]:
        """Return the processes to retire if ``wanted`` stay: pending ones first, then the newest;
        where pods are shared, whole pods."""
        shared = self._per_pod > 1
        order = sorted(staying, key=lambda p: (p.state == PENDING, p.slot if shared else 0))
        return order[wanted:]

    def to_state(self) -> dict[str, int]:
        return dict(self._next_id)

    def from_state(self, state: Mapping[str, int]) -> None:
        self._next_id = dict(state)


def free_slots(count: int, processes: Iterable[Process]) -> list[int]:
    """Return the ``count`` lowest slots that none of the processes has."""
    taken = {process.slot for process in processes}
    return list(itertools.islice((n for n in itertools.count() if n not in taken), count))

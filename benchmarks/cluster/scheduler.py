"""The scheduler of the cluster: which pod is placed where, and which pods make room for it.

As kube-scheduler decides, one pod at a time: the most urgent pending pod that fits goes to the
machine with the most free CPUs. If it fits nowhere, pods of lower priority are preempted on the
machine where the fewest must go; they have their grace period, and the room is kept for the pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from benchmarks.cluster.machines import (
    BOUND,
    GONE,
    PENDING,
    RUNNING,
    SIGTERM,
    Clock,
    End,
    Kubelets,
    Machine,
    Pod,
)
from benchmarks.cluster.usage import Usage

_CYCLE_S = 0.01


class Scheduler:
    """Places pods on machines, at most 100 in a second."""

    def __init__(
        self, clock: Clock, machines: Sequence[Machine], kubelets: Kubelets, usage: Usage
    ) -> None:
        self._clock, self._kubelets, self._usage = clock, kubelets, usage
        self.machines: dict[str, Machine] = {}
        self._by_free: dict[tuple[bool, int], dict[str, Machine]] = {}  # in order of arrival
        # (-priority, group, cpus, reserved) -> pods in order: pods of one key fit equally well.
        self._pending: dict[tuple[int, str, int, bool], dict[Pod, None]] = {}
        self._nominated: dict[Pod, None] = {}  # pods for which room is being made
        self._groups: dict[str, int] = {}  # that have all their CPUs
        self._waiting_groups: dict[str, int] = {}
        self._cycling = False
        self.preempted = 0
        self.waited_s: dict[str, list[float]] = {}
        """Seconds from submission to placement of the pods, by user."""
        for machine in machines:
            self.add(machine)

    # ---- machines ----

    @property
    def cpus(self) -> int:
        """Number of CPUs of all machines."""
        return sum(machine.cpus for machine in self.machines.values())

    def add(self, machine: Machine) -> None:
        """A machine joins the cluster."""
        self.machines[machine.name] = machine
        self._file(machine)
        self._wake()

    def reclaim(self, machine: Machine, grace_s: float) -> None:
        """A machine is taken away: its pods are asked to end, and after the grace it is gone."""
        self._unfile(machine)
        del self.machines[machine.name]
        for pod in list(machine.nominated):
            self._drop_pending(pod)
            self._pending.setdefault(self._key(pod), {})[pod] = None
        for pod in list(machine.pods):
            self._kubelets.end(pod, grace_s, self.removed)

    # ---- pods ----

    def hold(self, group: str, cpus: int) -> None:
        """The pods of a group are placed only when there are CPUs for all of them at once (gang
        scheduling); groups are served in their order."""
        self._waiting_groups[group] = cpus
        self._admit()

    def release(self, group: str) -> None:
        """A group is over, and its CPUs are for the next one."""
        self._waiting_groups.pop(group, None)
        self._groups.pop(group, None)
        self._admit()

    def _admit(self) -> None:
        for group, cpus in list(self._waiting_groups.items()):
            if sum(self._groups.values()) + cpus > self.cpus:
                return
            self._groups[group] = self._waiting_groups.pop(group)
        self._wake()

    def submit(self, pod: Pod) -> None:
        """A pod is to be placed."""
        pod.submitted_at = self._clock.now
        self._pending.setdefault(self._key(pod), {})[pod] = None
        self._wake()

    def delete(self, pod: Pod, grace_s: float) -> None:
        """A pod is to end."""
        if pod.state == PENDING:
            self._drop_pending(pod)
            pod.state = GONE
            self._clock.after(0, lambda: pod.ended(End(signal=SIGTERM)))
        elif pod.state != GONE:
            self._kubelets.end(pod, grace_s, self.removed)

    def exited(self, pod: Pod, code: int) -> None:
        """The process of a pod has ended by itself."""
        self._kubelets.over(pod, End(code=code), self.removed)

    def removed(self, pod: Pod, end: End) -> None:
        machine = pod.machine
        assert machine is not None
        filed = machine.name in self.machines and self.machines[machine.name] is machine
        if filed:
            self._unfile(machine)
        machine.pods.remove(pod)
        machine.used -= pod.cpus
        if filed:
            self._file(machine)
        self._usage.add(self._usage.bound, pod.user, -pod.cpus)
        pod.ended(end)
        self._wake()

    # ---- placing ----

    def _wake(self) -> None:
        if not self._cycling:
            self._cycling = True
            self._clock.after(_CYCLE_S, self._cycle)

    def _cycle(self) -> None:
        """Places one pod, and goes on as long as it can place any."""
        self._cycling = self._place_next()
        if self._cycling:
            self._clock.after(_CYCLE_S, self._cycle)

    def _place_next(self) -> bool:
        for pod in self._nominated:
            assert pod.nominated is not None
            if pod.nominated.free_for(pod) >= pod.cpus:
                self._bind(pod, pod.nominated)
                return True
        for key in sorted(self._pending):
            if key[1] and key[1] not in self._groups:
                continue
            pod = next(iter(self._pending[key]))
            machine = self._machine_for(pod)
            if machine is not None:
                self._bind(pod, machine)
                return True
            if self._preempt_for(pod):
                return True
        return False

    def _machine_for(self, pod: Pod) -> Machine | None:
        """The machine with the most free CPUs that has enough of them."""
        for spot, free in sorted(self._by_free, key=lambda key: (-key[1], key[0])):
            if free < pod.cpus:
                return None
            if spot and pod.reserved:
                continue
            for machine in self._by_free[spot, free].values():
                if not machine.nominated or machine.free_for(pod) >= pod.cpus:
                    return machine
        return None

    def _bind(self, pod: Pod, machine: Machine) -> None:
        self._drop_pending(pod)
        self._unfile(machine)
        machine.pods.append(pod)
        machine.used += pod.cpus
        self._file(machine)
        pod.machine, pod.state = machine, BOUND
        self.waited_s.setdefault(pod.user, []).append(self._clock.now - pod.submitted_at)
        self._usage.add(self._usage.bound, pod.user, pod.cpus)
        self._kubelets.start(pod)

    def _preempt_for(self, pod: Pod) -> bool:
        """Makes room for a pod at the cost of others, if there are less urgent ones."""
        choices = [
            (machine, Counter(cpu=pod.cpus - machine.free_for(pod)), _less_urgent(machine, pod))
            for machine in self.machines.values()
            if not (machine.spot and pod.reserved)
        ]
        found = cheapest_victims(choices)
        if found is None:
            return False
        machine, victims = found
        self._drop_pending(pod)
        pod.nominated = machine
        machine.nominated.append(pod)
        self._nominated[pod] = None
        self.preempted += len(victims)
        for victim in victims:
            self._kubelets.end(victim, victim.grace_s, self.removed)
        return True

    # ---- bookkeeping ----

    def _key(self, pod: Pod) -> tuple[int, str, int, bool]:
        return -pod.priority, pod.group, pod.cpus, pod.reserved

    def _drop_pending(self, pod: Pod) -> None:
        if pod.nominated is not None:
            pod.nominated.nominated.remove(pod)
            pod.nominated = None
            del self._nominated[pod]
            return
        waiting = self._pending[self._key(pod)]
        del waiting[pod]
        if not waiting:
            del self._pending[self._key(pod)]

    def _file(self, machine: Machine) -> None:
        key = (machine.spot, machine.cpus - machine.used)
        self._by_free.setdefault(key, {})[machine.name] = machine

    def _unfile(self, machine: Machine) -> None:
        key = (machine.spot, machine.cpus - machine.used)
        del self._by_free[key][machine.name]
        if not self._by_free[key]:
            del self._by_free[key]


def _less_urgent(machine: Machine, pod: Pod) -> list[Victim[Pod]]:
    """The newest first of those that are equally urgent."""
    # CPUs of pods that are leaving already are free soon, and may be kept for somebody else.
    found = [
        (other, other.priority, Counter(cpu=other.cpus))
        for other in reversed(machine.pods)
        if other.priority < pod.priority and other.state in (BOUND, RUNNING)
    ]
    return sorted(found, key=lambda each: each[1])


P, M = TypeVar("P"), TypeVar("M")
Victim = tuple[P, int, Counter[str]]
"""A pod, its priority, and the resources that it holds."""


def cheapest_victims(
    choices: Iterable[tuple[M, Counter[str], Iterable[Victim[P]]]],
) -> tuple[M, list[P]] | None:
    """The machine on which the least urgent pods must go, and the fewest of them; and these pods.

    Args:
        choices: machines, the resources that are missing on each, and the pods that may go there
            in the order in which they would.
    """
    best: tuple[tuple[int, int], M, list[P]] | None = None
    for machine, missing, less_urgent in choices:
        missing = +missing
        victims: list[P] = []
        priorities: list[int] = []
        for pod, priority, held in less_urgent:
            if not missing:
                break
            missing -= held
            victims.append(pod)
            priorities.append(priority)
        cost = max(priorities, default=0), len(victims)
        if victims and not missing and (best is None or cost < best[0]):
            best = cost, machine, victims
    return best and best[1:]

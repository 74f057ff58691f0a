"""Slots of processes: which are free, which process leaves first, and which share a pod. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

from master.state.workforce.processes import PENDING, Process

P = TypeVar("P", bound=Process)


class Slots:
    """Numbers from 0 on; a new process takes the lowest free one.

    Args:
        per_pod: number of neighbouring slots that share a pod.
    """

    def __init__(self, per_pod: int = 1) -> None:
        self._per_pod = per_pod

    def free(self, count: int, processes: Iterable[Process]) -> list[int]:
        """Return the ``count`` lowest slots that none of the processes has."""
        taken = {process.slot for process in processes}
        return list(itertools.islice((n for n in itertools.count() if n not in taken), count))

    def beyond(self, wanted: int, staying: Sequence[P]) -> list[P]:
        """Return the processes to retire if ``wanted`` stay: pending ones first, then the newest;
        where pods are shared, whole pods."""
        shared = self._per_pod > 1
        order = sorted(staying, key=lambda p: (p.state == PENDING, p.slot if shared else 0))
        return order[wanted:]

    def pod(self, slot: int, id: int, staying: Iterable[Process]) -> int:
        """Return the pod of a process to be started: that of a neighbour that stays, or a new one;
        -1 if pods are not shared. A pod ends once all its processes leave."""
        if self._per_pod == 1:
            return -1
        neighbours = slot // self._per_pod
        return next((p.pod for p in staying if p.slot // self._per_pod == neighbours), id)

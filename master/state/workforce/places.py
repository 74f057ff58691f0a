"""Places of processes: which are free, which process leaves first, and which share a pod. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from master.state.workforce.processes import PENDING, Process


class Places:
    """Numbers from 0 on; a new process takes the lowest free one.

    Args:
        per_pod: number of neighbouring places that share a pod.
    """

    def __init__(self, per_pod: int = 1) -> None:
        self._per_pod = per_pod

    def free(self, count: int, processes: Iterable[Process]) -> list[int]:
        """Return the ``count`` lowest places that none of the processes has."""
        taken = {process.place for process in processes}
        return list(itertools.islice((n for n in itertools.count() if n not in taken), count))

    def beyond(self, wanted: int, staying: Sequence[Process]) -> list[Process]:
        """Return the processes to retire if ``wanted`` stay: pending ones first, then the newest;
        where pods are shared, whole pods."""
        shared = self._per_pod > 1
        order = sorted(staying, key=lambda p: (p.state == PENDING, p.place if shared else 0))
        return order[wanted:]

    def pod(self, place: int, id: int, staying: Iterable[Process]) -> int:
        """Return the pod of a process to be started: that of a neighbour that stays, or a new one;
        -1 if pods are not shared. A pod ends once all its processes leave."""
        if self._per_pod == 1:
            return -1
        neighbours = place // self._per_pod
        return next((p.pod for p in staying if p.place // self._per_pod == neighbours), id)

"""Places of processes of a kind: which are free, who leaves first, and who shares a pod. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from master.state.workforce.processes import PENDING, Process


class Places:
    """Numbers from 0: a new process takes the lowest that no other one has.

    Args:
        per_pod: so many neighbours share a pod.
    """

    def __init__(self, per_pod: int = 1) -> None:
        self._per_pod = per_pod

    def free(self, count: int, processes: Iterable[Process]) -> list[int]:
        """The lowest places that none of the processes has."""
        taken = {process.place for process in processes}
        return list(itertools.islice((n for n in itertools.count() if n not in taken), count))

    def beyond(self, wanted: int, staying: Sequence[Process]) -> list[Process]:
        """Those that leave if so many are wanted: those that do not run yet, then those that came
        last; where pods are shared, whole pods."""
        shared = self._per_pod > 1
        order = sorted(staying, key=lambda p: (p.state == PENDING, p.place if shared else 0))
        return order[wanted:]

    def pod(self, place: int, id: int, staying: Iterable[Process]) -> int:
        """The pod of a process that is to be started: that of a neighbour that stays, or a new one;
        -1: it shares none. A pod whose processes all leave ends with them."""
        if self._per_pod == 1:
            return -1
        neighbours = place // self._per_pod
        return next((p.pod for p in staying if p.place // self._per_pod == neighbours), id)

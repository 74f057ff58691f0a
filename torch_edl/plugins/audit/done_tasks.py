"""The tasks of a job that are done, as runs of ids: the memory grows with the number of runs, and
not with the number of tasks. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

Run = tuple[int, int, int]
"""First and last task of a run, and the worker that completed the tasks."""
_LAST = (1 << 63) - 1


class DoneTasks:
    """Disjoint runs of tasks, in order."""

    def __init__(self) -> None:
        self._firsts, self._lasts, self._workers = array("q"), array("q"), array("q")

    def add(self, first: int, last: int, worker: int) -> None:
        """Add tasks, none of which is done; ``first`` and ``last`` are inclusive."""
        at = bisect_left(self._firsts, first)
        joins_left = at > 0 and (self._lasts[at - 1], self._workers[at - 1]) == (first - 1, worker)
        joins_right = at < len(self._firsts) and (
            (self._firsts[at], self._workers[at]) == (last + 1, worker)
        )
        if joins_left and joins_right:
            self._lasts[at - 1] = self._lasts[at]
            for each in (self._firsts, self._lasts, self._workers):
                del each[at]
        elif joins_left:
            self._lasts[at - 1] = last
        elif joins_right:
            self._firsts[at] = first
        else:
            self._firsts.insert(at, first)
            self._lasts.insert(at, last)
            self._workers.insert(at, worker)

    def runs(self, first: int = 0, last: int = _LAST) -> Iterator[Run]:
        """Yield the runs within a range of tasks, cut to the range."""
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._firsts) and self._firsts[at] <= last:
            if self._lasts[at] >= first:
                begin, end = max(first, self._firsts[at]), min(last, self._lasts[at])
                yield begin, end, self._workers[at]
            at += 1

    def first_in(self, first: int, last: int = _LAST) -> int | None:
        """Return the first task of a range that is done; None if none is."""
        at = bisect_right(self._firsts, first) - 1
        if at >= 0 and self._lasts[at] >= first:
            return first
        after = at + 1 < len(self._firsts) and self._firsts[at + 1] <= last
        return self._firsts[at + 1] if after else None

    def worker(self, task: int) -> int | None:
        """Return the worker that completed a task; None if the task is not done."""
        at = bisect_right(self._firsts, task) - 1
        return self._workers[at] if at >= 0 and self._lasts[at] >= task else None

    def take_from(self, first: int) -> list[Run]:
        """Remove the tasks from ``first`` on, and return their runs."""
        taken = list(self.runs(first))
        at = bisect_left(self._firsts, first)
        for each in (self._firsts, self._lasts, self._workers):
            del each[at:]
        if at and self._lasts[at - 1] >= first:
            self._lasts[at - 1] = first - 1
        return taken

    @property
    def last(self) -> int:
        """The last task that is done; -1 without one."""
        return self._lasts[-1] if self._lasts else -1

    def __bool__(self) -> bool:
        return bool(self._firsts)

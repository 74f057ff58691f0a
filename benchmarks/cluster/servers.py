"""The parameter servers of a job: processes that the master starts, and their watermarks."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from benchmarks.cluster.machines import Pod
from torch_edl.data.task_space import TaskSpace


class Watermarks:
    """Which records the servers of a job have applied: the witness that each is done once.

    All servers are one here, since none of them is lost in these experiments: they run on machines
    that stay. As in :mod:`torch_edl.ps_server`, a push of records that were applied is a duplicate,
    and one that leaves a gap is an error.
    """

    def __init__(self, space: TaskSpace) -> None:
        self._space = space
        self._marks = array("I", bytes(4 * space.total))
        self.applied = 0
        """Records."""
        self.duplicates = 0
        """Records that were pushed again."""

    @property
    def tasks(self) -> int:
        """Tasks of the job."""
        return len(self._marks)

    def of(self, task: int) -> int:
        """The first record of a task that was not applied."""
        return self._marks[task]

    def push(self, task: int, first: int, last: int) -> None:
        """A worker pushes the gradients of records ``first`` to ``last`` of a task."""
        mark = self._marks[task]
        if last <= mark:
            self.duplicates += last - first
            return
        assert first == mark, f"task {task}: a push of [{first}, {last}) at watermark {mark}"
        self._marks[task] = last
        self.applied += last - first

    def check(self) -> None:
        """Raises AssertionError unless every record of every task was applied."""
        for id, mark in enumerate(self._marks):
            assert mark == self._space.task(id).records, f"task {id}: {mark} records applied"


class Server:
    """The process of a parameter server."""

    def __init__(self, registers: Callable[[], None], ends: Callable[[Pod, int], None]) -> None:
        self._registers = registers
        self._ends = ends
        self._pod: Pod | None = None

    def run(self, pod: Pod) -> None:
        self._pod = pod
        self._registers()

    def terminate(self) -> None:
        assert self._pod is not None
        self._ends(self._pod, 143)

    def kill(self) -> None:
        pass

"""The output of the workers of one machine, followed in its files and shown line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch_edl.agent.workers import Worker
from torch_edl.jobs.log_tail import WholeLines
from torch_edl.wire import master_pb2 as pb

STDOUT, STDERR = "stdout", "stderr"


class Watch(Protocol):
    """Whoever shows a job to the user; called by the thread of the agent."""

    def status(self, status: pb.GetStatusResponse) -> None:
        """How the job is now, with the events since the last call."""

    def output(self, rank: int, stream: str, line: bytes) -> None:
        """A line that a worker printed, as it printed it.

        Args:
            stream: ``stdout`` or ``stderr``.
        """


class Outputs:
    """Follows the files of redirected streams; those that go elsewhere have none."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._followed: dict[str, tuple[int, str, WholeLines]] = {}

    def __bool__(self) -> bool:
        return bool(self._followed)

    def follow(self, workers: Sequence[Worker]) -> None:
        """The workers that run now. One that is known already is followed on; of one that ended
        what is left is shown, and nothing later."""
        places = {
            path: (worker.rank, stream)
            for worker in workers
            for stream, path in ((STDOUT, worker.stdout), (STDERR, worker.stderr))
            if path
        }
        for path in [path for path in self._followed if path not in places]:
            self._show(*self._followed.pop(path), final=True)
        for path, (rank, stream) in places.items():
            self._followed.setdefault(path, (rank, stream, WholeLines(path)))

    def look(self, *, final: bool = False) -> None:
        """Shows new lines; with ``final`` what is left, unfinished lines too."""
        for followed in self._followed.values():
            self._show(*followed, final=final)

    def _show(self, rank: int, stream: str, lines: WholeLines, *, final: bool) -> None:
        for line in lines.read(final=final):
            self._watch.output(rank, stream, line)

"""Interface through which a master starts, watches and ends the processes of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch_edl.processes.spec import ProcessEvent, ProcessSpec
from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Known:
    """Record in the job state of a process that an earlier launcher was asked to start."""

    role: str
    id: int
    pid: int = 0
    """Pid of the process; 0 if it is unknown or the process runs on another machine."""
    since: int = 0
    """Start time, see :func:`torch_edl.processes.adoption.start_time`."""
    ran: bool = False
    """True if the process is known to have run. If it cannot be found, it has ended."""
    started_as: str = ""
    """Name of the process when it was started; empty if the name has not changed."""
    pod: int = -1
    """Id of the first worker of a shared pod; see
    :attr:`torch_edl.processes.spec.ProcessSpec.pod`."""


class Launcher(Protocol):
    """Starts, watches and ends processes. A launcher is used by one thread.

    Role and id name a process; no other process of the job ever has the same role and id.
    :meth:`poll` reports later that a process waits, runs, or has ended.
    """

    def start(self, spec: ProcessSpec) -> int:
        """Start ``python -m spec.module *spec.args``; return its pid, 0 if it runs elsewhere.

        Raises:
            OSError: the process cannot be started.
        """
        ...

    def adopt(self, known: Sequence[Known]) -> dict[tuple[str, int], Known | None]:
        """Take over the processes that an earlier launcher was asked to start.

        Called before any other method. :meth:`poll` reports the processes that have ended.

        Returns:
            What is known of each process now, by role and id; None if it was never started.
        """
        ...

    def poll(self) -> Sequence[ProcessEvent]:
        """Return the events since the last call. The end of a process is reported once."""
        ...

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Ask a process to end, and kill it ``grace_s`` seconds later; 0 kills it at once.

        The method returns immediately, and :meth:`poll` reports the end. A second call may shorten
        the grace.
        """
        ...

    def rename(self, role: str, id: int, to_role: str, to_id: int) -> None:
        """Record that a process has changed its role and id."""
        ...

    def stop_all(self, *, grace_s: float) -> None:
        """End every process and wait until all have ended."""
        ...

    def log_path(self, role: str, id: int) -> str:
        """Return the place of the output of a process, for messages."""
        ...

    def close(self) -> None:
        """Close the launcher; running processes continue."""
        ...


@runtime_checkable
class SharedLauncher(Protocol):
    """A launcher of pods in which several workers run; each pod asks the master for its workers."""

    def report(self, request: pb.PodReportRequest) -> pb.PodReportResponse:
        """Process the report of a pod, and return which workers to run and to stop. Thread-safe."""
        ...

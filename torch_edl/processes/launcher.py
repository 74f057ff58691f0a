"""The processes of a job, wherever they run: what a master needs to start, watch and end them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch_edl.processes.spec import ProcessEvent, ProcessSpec


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the state of a job knows of a process that an earlier launcher was to start."""

    role: str
    id: int
    pid: int = 0
    """0: it was not known yet, or the process is on another machine."""
    since: int = 0
    """See :func:`torch_edl.processes.adoption.start_time`."""
    ran: bool = False
    """The process is known to have run: if it is not there, it has ended."""
    started_as: str = ""
    """The name that it had when it was started; empty: its name of today."""
    pod: int = -1
    """See :attr:`torch_edl.processes.spec.ProcessSpec.pod`."""


class Launcher(Protocol):
    """Starts processes, watches and ends them. One thread owns it.

    A process is named by its role and id, which no other process of the job has or had. Whatever is
    not known at once, :meth:`poll` tells later: that a process waits, runs, or has ended.
    """

    def start(self, spec: ProcessSpec) -> int:
        """Starts ``python -m spec.module *spec.args``; returns its pid, 0 if it has none here.

        Raises:
            OSError: the process cannot be started.
        """
        ...

    def adopt(self, known: Sequence[Known]) -> dict[tuple[str, int], Known | None]:
        """Takes over the processes that an earlier launcher was to start, before anything else is
        done; those that have ended meanwhile are reported by :meth:`poll`.

        Returns:
            What is known now of each, by role and id; None: it was never started.
        """
        ...

    def poll(self) -> Sequence[ProcessEvent]:
        """What has happened since the last call; each end is told once."""
        ...

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Asks a process to end, and ends it by force ``grace_s`` later; 0: at once. May be called
        again with a shorter grace. Returns at once: :meth:`poll` reports the end."""
        ...

    def rename(self, role: str, id: int, to_role: str, to_id: int) -> None:
        """A process has another role from now on."""
        ...

    def stop_all(self, *, grace_s: float) -> None:
        """Ends every process, and waits until none is left."""
        ...

    def log_path(self, role: str, id: int) -> str:
        """Where the output of a process is."""
        ...

    def close(self) -> None:
        """Leaves the processes that run as they are."""
        ...

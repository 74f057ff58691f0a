"""The interface of launchers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start: ``python -m module *args`` with extra environment."""

    role: str
    """``master``, ``ps`` or ``worker``."""
    id: int
    """Unique among all processes of that role that the job ever had."""
    module: str
    """Python module to run with ``-m``."""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    follows: bool = True
    """The process ends when the one that started it is gone."""

    @property
    def name(self) -> str:
        """``worker-3``: for logs and files."""
        return f"{self.role}-{self.id}"


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """How a process ended."""

    role: str
    id: int
    code: int | None
    """Exit code; None where a signal ended the process."""
    signal: int | None = None

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.code}"


class Launcher(Protocol):
    """Starts processes, and reports their ends. Not thread-safe: one thread owns it."""

    def start(self, spec: ProcessSpec) -> int:
        """Starts a process and returns its pid (0 where there is none to know).

        Raises:
            OSError: the process could not be started.
        """
        ...

    def poll(self) -> list[ProcessExit]:
        """Processes that ended since the last call, each once."""
        ...

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Sends SIGTERM to a process, and SIGKILL ``grace_s`` later. Returns at once; :meth:`poll`
        sends the SIGKILL and reports the end, so it must be called."""
        ...

    def stop_all(self, *, grace_s: float) -> None:
        """Ends every process and waits until none is left."""
        ...

    def log_path(self, role: str, id: int) -> str:
        """The file with the output of the process; empty if there is none."""
        ...

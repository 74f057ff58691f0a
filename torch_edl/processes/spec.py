"""What is to be started, and how it ended: records without the process itself."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
    end_with_parent: int = signal.SIGKILL
    """The signal that the process gets when the one that started it is gone; 0: none."""

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

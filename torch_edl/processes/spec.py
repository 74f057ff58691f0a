"""What is to be started, and how it ended: records without the process itself."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# How machines are taken away: asked first, as a rule.
_PREEMPTIONS = (signal.SIGTERM, signal.SIGKILL)


def ended_by(code: int, *signals: int) -> bool:
    """Whether one of these signals ended a process.

    Args:
        code: its exit code; -N: signal N ended it. A shell, and a program that heard the signal,
            say 128 + N.
    """
    return any(code in (-number, 128 + number) for number in signals)


def was_preempted(code: int) -> bool:
    """Whether somebody took the process away, which is never a failure of its own."""
    return ended_by(code, *_PREEMPTIONS)


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
    code: int | None = None
    """Exit code; None where a signal ended the process."""
    signal: int | None = None
    """None as well: how the process ended is not known, since this process did not start it."""

    @property
    def was_terminated(self) -> bool:
        """Somebody asked it to leave, with SIGTERM."""
        return ended_by(self._number, signal.SIGTERM)

    @property
    def was_killed(self) -> bool:
        """Somebody ended it with SIGKILL: as a rule the kernel, or who takes the machine away. How
        it ended may be unknown, which proves no fault of its own."""
        return self._is_unknown or ended_by(self._number, signal.SIGKILL)

    @property
    def _number(self) -> int:
        return self.code or 0 if self.signal is None else -self.signal

    @property
    def _is_unknown(self) -> bool:
        return self.code is None and self.signal is None

    def __str__(self) -> str:
        if self._is_unknown:
            return "an unknown exit code"
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.code}"

"""What is to be started, how far it has come, and how it ended: records without the process."""

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
    place: int = -1
    """Of a worker: its place among those that run at once; -1: none."""
    pod: int = -1
    """Of a worker that shares a pod: the id of the worker for which the pod was made, or is to be;
    -1: it shares none."""
    avoid: Sequence[str] = ()
    """Machines on which it is to run only if no other one has room."""

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
    why: str = ""
    """What else is known of the cause, for the user."""
    own_fault: bool | None = None
    """False: it was taken away, which is no failure of the job, whatever its exit code. True: it
    failed by itself, even if a signal ended it. None: its exit code or signal tells."""
    node: str = ""
    """The machine that it ran on; empty: this one, or none."""
    blames_node: bool = False
    """Its machine may be the cause."""

    @property
    def was_terminated(self) -> bool:
        """Somebody asked it to leave, with SIGTERM."""
        return self.own_fault is None and ended_by(self._number, signal.SIGTERM)

    @property
    def was_killed(self) -> bool:
        """Somebody ended it with SIGKILL: as a rule the kernel, or who takes the machine away. How
        it ended may be unknown, which proves no fault of its own."""
        if self.own_fault is not None:
            return False
        return self.is_unknown or ended_by(self._number, signal.SIGKILL)

    @property
    def was_taken(self) -> bool:
        """It was preempted or evicted, or its machine is lost: known for sure."""
        return self.own_fault is False

    @property
    def _number(self) -> int:
        return self.code or 0 if self.signal is None else -self.signal

    @property
    def is_unknown(self) -> bool:
        """Neither an exit code nor a signal is known."""
        return self.code is None and self.signal is None

    @property
    def how(self) -> str:
        """``ended with exit code 1``: behind the name of the process, a sentence."""
        if self.was_taken:
            return f"was taken away: {self.why}"
        return f"ended{', ' if self.is_unknown else ' with '}{self}"

    def __str__(self) -> str:
        if self.was_taken:
            return self.why
        if self.is_unknown:
            text = "exit code not known"
        else:
            text = f"exit code {self.code}" if self.signal is None else f"signal {self.signal}"
        return f"{text}: {self.why}" if self.why else text


@dataclass(frozen=True, kw_only=True)
class ProcessWaits:
    """A process was asked for, and does not run yet."""

    role: str
    id: int
    why: str = ""
    """What keeps it from running, in one line; empty: nothing does, it is about to run."""
    fix: str = ""
    """What the user can do."""
    placed: bool = True
    """A machine has room for it."""


@dataclass(frozen=True, kw_only=True)
class ProcessRuns:
    """A process that was asked for runs."""

    role: str
    id: int
    node: str = ""
    """The machine that it runs on; empty: this one."""


@dataclass(frozen=True, kw_only=True)
class ProcessRefused:
    """A process will never run, nor will another one like it."""

    role: str
    id: int
    why: str
    """With what to do."""


ProcessEvent = ProcessWaits | ProcessRuns | ProcessRefused | ProcessExit
"""What a launcher has to say of a process."""

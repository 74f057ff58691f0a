"""Interface of a launcher, through which a master starts, watches and ends the processes of its
job, and the descriptions of processes that both exchange."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch_edl import events
from torch_edl.events import MachineJoined, MachineLeft


def ended_by(code: int, *signals: int) -> bool:
    """Return True if one of these signals ended a process.

    Args:
        code: exit code of the process; -N means signal N. A shell, or a program that handles the
            signal, exits with 128 + N.
    """
    return any(code in (-number, 128 + number) for number in signals)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of the user: a training script, or any other program.

    The process inherits stdin and the environment. If it ends by itself with exit code 0, the
    processes that it forked may continue.
    """

    words: Sequence[str] = ()
    """The program and its arguments; empty: the script for which the node was started."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to those of the parent."""
    stdout: str = ""
    """File for stdout, which is emptied first; empty: the process inherits stdout."""
    stderr: str = ""
    """File for stderr, as ``stdout``."""
    error_file: str = ""
    """File to which the process may write an uncaught error, in torch's format, and beside which
    it leaves the files of :mod:`torch_edl.processes.script_marks`; empty if there is none."""
    terminates_group: bool = False
    """True if SIGTERM is sent to the whole process group, because the program may not forward the
    signal to its children. False if only the process itself gets SIGTERM."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start: ``python -m module *args``, or a command of the user, with extra
    environment variables."""

    role: str
    """Role of the process: ``master``, ``ps`` or ``worker``."""
    id: int
    """Number of the process, never used twice for a role in one job."""
    module: str = ""
    """Python module to run with ``-m``; empty if there is a command, or if only a pod is to be
    created for a process that starts later."""
    args: Sequence[str] = ()
    command: Command | None = None
    """Command that runs instead of the module."""
    env: Mapping[str, str] = field(default_factory=dict)
    end_with_parent: int = signal.SIGKILL
    """Signal that the process gets when its parent ends; 0 for none."""
    slot: int = -1
    """Slot of a worker among the workers that run at once; -1 for none."""
    pod: str = ""
    """Pod of the process: the name of the process for which the pod was created, which is this
    process for a new pod. Empty where processes have no pods."""
    avoid: Sequence[str] = ()
    """Machines to use only if no other machine has room."""
    apart: Sequence[int] = ()
    """Ids of processes of the same role that should run on other machines."""

    @property
    def name(self) -> str:
        """Name of the process in logs and files, such as ``worker-3``."""
        return f"{self.role}-{self.id}"


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """The end of a process: exit code, signal and cause."""

    role: str
    id: int
    code: int | None = None
    """Exit code; None if a signal ended the process."""
    signal: int | None = None
    """Signal that ended the process; None if there was none. The end is unknown if both are None,
    because another process is its parent."""
    why: str = ""
    """Further details of the cause, for the user."""
    own_fault: bool | None = None
    """False if the process was taken away, which is no failure of the job, whatever its exit code.
    True if the process failed by itself, even if a signal ended it. None to decide by exit code or
    signal."""
    node: str = ""
    """Machine of the process; empty for this machine or if there is none."""
    blames_node: bool = False
    """True if the machine may have caused the end."""
    open_loop: str | None = None
    """Set if a script ended with exit code 0 in a loop over a loader: the error that ended the
    loop, or an empty string."""
    error: str = ""
    """Failure of a script in a sentence, with its rank and its exception; empty if the script ended
    well, or if its node could not tell."""
    traceback: str = ""
    """Traceback of the exception that ended a script; empty if there is none."""
    pod_lives: bool = False
    """True if the pod of the process is still there, and another process can start in it. The pod
    stays until :meth:`Launcher.stop` is called for the ended process."""

    @property
    def was_terminated(self) -> bool:
        """True if SIGTERM ended the process and no other cause is known."""
        return self.own_fault is None and ended_by(self._number, signal.SIGTERM)

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended the process, or if the end is unknown.

        As a rule, SIGKILL comes from the kernel or from the owner of the machine. An unknown end
        proves no fault of the process.
        """
        if self.own_fault is not None:
            return False
        return self.is_unknown or ended_by(self._number, signal.SIGKILL)

    @property
    def lacked_memory(self) -> bool:
        """True if the kernel killed the process because memory was short."""
        return self.own_fault is True and ended_by(self._number, signal.SIGKILL)

    @property
    def is_preemption(self) -> bool:
        """True if the process may have been preempted, without a known cause: SIGTERM or SIGKILL
        ended it, also if memory was short."""
        return self.was_terminated or self.was_killed or self.lacked_memory

    @property
    def completed(self) -> bool:
        """True if the process came to the end of its program: it ended with exit code 0, and not in
        a loop over a loader."""
        return self.code == 0 and self.open_loop is None and not self.was_taken

    @property
    def was_taken(self) -> bool:
        """True if the process is known to be preempted, evicted, or on a lost machine."""
        return self.own_fault is False

    @property
    def _number(self) -> int:
        return self.code or 0 if self.signal is None else -self.signal

    @property
    def is_unknown(self) -> bool:
        """True if neither exit code nor signal is known."""
        return self.code is None and self.signal is None

    @property
    def way(self) -> events.Way:
        """``taken`` or ``ended``: how an event describes the end."""
        return "taken" if self.was_taken else "ended"

    @property
    def how(self) -> str:
        """Predicate of a sentence about the process, such as ``ended with exit code 1``."""
        return events.how(self.way, str(self))

    def __str__(self) -> str:
        if self.was_taken:
            return self.why
        if self.is_unknown:
            text = events.UNKNOWN_EXIT
        else:
            text = f"exit code {self.code}" if self.signal is None else f"signal {self.signal}"
        if self.open_loop is not None:
            text += " inside its loop"
        return f"{text}: {self.why}" if self.why else text


@dataclass(frozen=True, kw_only=True)
class ProcessWaits:
    """A process was requested and is not running yet."""

    role: str
    id: int
    why: str = ""
    """Reason why the process does not run, in one line; empty if it is about to run."""
    fix: str = ""
    """Advice for the user; empty if there is none."""
    placed: bool = True
    """True if a machine has room for the process."""


@dataclass(frozen=True, kw_only=True)
class ProcessRuns:
    """A requested process runs."""

    role: str
    id: int
    node: str = ""
    """Machine of the process; empty for that of the master."""
    pid: int = 0
    """Process id on its machine; 0 if it is unknown."""
    log: str = ""
    """Log file of the process of a script, on its machine; empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class ProcessFails:
    """A process that still runs will end with an exit code other than 0."""

    role: str
    id: int


@dataclass(frozen=True, kw_only=True)
class ProcessNotStarted:
    """A process did not start, and never will."""

    role: str
    id: int
    why: str = ""
    """Reason for the user; empty if an earlier master decided to start the process, but ended
    before the start."""


@dataclass(frozen=True, kw_only=True)
class ProcessRefused:
    """A process was rejected for good; a new request for the same process would be, too."""

    role: str
    id: int
    why: str
    """Reason and advice for the user."""


ProcessEvent = (
    ProcessWaits | ProcessRuns | ProcessFails | ProcessNotStarted | ProcessRefused | ProcessExit
)
"""An event that a launcher reports about a process."""


LauncherEvent = ProcessEvent | MachineJoined | MachineLeft
"""An event that a launcher reports."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Record in the job state of a process that an earlier launcher was asked to start."""

    role: str
    id: int
    pid: int = 0
    """Pid of the process; 0 if it is unknown."""
    ran: bool = False
    """True if the process is known to have run. If it cannot be found, it has ended."""
    pod: str = ""
    """Pod of the process; see :attr:`torch_edl.processes.launcher.ProcessSpec.pod`."""
    idle: bool = False
    """True if only the pod was requested, and no process."""
    slot: int = -1
    """Slot of the process; see :attr:`ProcessSpec.slot`."""


class Launcher(Protocol):
    """Starts, watches and ends processes. A launcher is used by one thread.

    Role and id name a process; no other process of the job ever has the same role and id.
    :meth:`poll` reports later that a process waits, runs, did not start, or has ended.
    """

    def start(self, spec: ProcessSpec) -> None:
        """Start ``python -m spec.module *spec.args``."""
        ...

    def adopt(self, known: Sequence[Known]) -> None:
        """Take over the processes that an earlier launcher was asked to start. Called before any
        other method.

        Raises:
            EdlError: the cluster does not answer.
        """
        ...

    def poll(self) -> Sequence[LauncherEvent]:
        """Return the events since the last call. The end of a process is reported once."""
        ...

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Ask a process to end, and kill it ``grace_s`` seconds later; 0 kills it at once.

        The method returns immediately, and :meth:`poll` reports the end. A second call may shorten
        the grace. If the process has ended and its pod still lives, end the pod.
        """
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

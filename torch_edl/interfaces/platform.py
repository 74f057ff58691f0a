"""Where the processes of a job run: the interface of a platform.

:class:`Platform` is what commands need, :class:`JobHandle` a job that a command has found, and
:class:`Host` what the master of a job needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from google.protobuf.message import Message
    from rich.console import Console

    from torch_edl.config import JobConfig
    from torch_edl.interfaces.store import Store
    from torch_edl.processes.launcher import Launcher
    from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """The outcome of a job, as far as the client could observe it."""

    state: str
    """``finished``, ``failed`` or ``stopped``."""
    status: pb.GetStatusResponse | None
    """The last status; None if the master never answered."""
    error: str = ""
    """Cause of a failure or a stop; empty if there is none."""
    traceback: str = ""
    """Traceback of the user's code, or the last output of the master; empty if there is none."""
    usage_error: bool = False
    """True if the user can fix the error in the arguments or files of the job."""
    signal: int = 0
    """Number of the signal that made the client stop the job; 0 if there was none."""
    master_pid: int = 0
    """Process id of the master; 0 on a cluster."""
    master_exit: str = ""
    """How the master exited, such as its exit code; empty if it was not seen to exit."""
    logs: str = ""
    """Folder of the logs, or the command that shows them."""

    @property
    def exit_code(self) -> int:
        """0: finished; 128 + signal: stopped; 2: an error that the user can fix; 1: failed."""
        if self.state == "finished":
            return 0
        if self.signal:
            return 128 + self.signal
        return 2 if self.usage_error else 1


class Submission(NamedTuple):
    """A job that was checked and may be started."""

    config: JobConfig
    code: Mapping[str, bytes] = {}
    """Source files to send with the job by their path, the model file first."""


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """The logs that a command shows."""

    role: str = ""
    """Role of the processes, or ``events``; empty: all processes and the events."""
    id: int | None = None
    """Number of the process; None: all processes of the role."""
    tail: int | None = None
    """Number of existing lines to read of each log, the last ones; None: all."""
    follow: bool = False
    """True if new lines are read until the job has ended."""


class JobHandle(ABC):
    """A job that runs or has ended, as commands see it.

    Methods raise EdlError if the cluster of the job does not answer, or rejects the request.
    """

    name: str
    """Name of the job, as given by the user."""

    @property
    @abstractmethod
    def logs(self) -> str | Path:
        """Location of the logs: a folder, or the command that shows the logs."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Text that says what the job has left, such as its folder."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Options by which a command finds the job, such as ``--namespace team``; empty: none."""

    @abstractmethod
    def config(self) -> JobConfig:
        """Return the configuration of the job.

        Raises:
            UsageError: the configuration was written by another version.
        """

    @abstractmethod
    def ask(self, request: Message) -> Any:
        """Make one call to the master and return the answer.

        Raises:
            UsageError: the job is over, or the master rejected the call.
        """

    def stop(self, request: pb.StopRequest) -> None:
        """Ask the master to stop the job; a job without a master may be deleted instead.

        Raises:
            UsageError: the job is over.
        """
        self.ask(request)

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """Return the status as plain data, from the master or from what the ended job has left."""

    def history(self) -> bytes:
        """Return the history that an ended job of a cluster has left, see ``JobFolder``; empty if
        there is none."""
        return b""

    @abstractmethod
    def started(self) -> float:
        """Return the Unix time at which the job was created, in seconds."""

    @abstractmethod
    def touched(self) -> float:
        """Return the Unix time of the last activity of a job that is over, in seconds."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Return True if no process of the job is left."""

    @abstractmethod
    def is_over(self) -> bool:
        """Return True if the job had ended when it was found."""

    @abstractmethod
    def remove(self) -> None:
        """Remove what the job has left: logs, events, status."""

    @abstractmethod
    def attach(self, console: Console) -> JobOutcome | None:
        """Show events and progress until the job is over, and return the outcome; None if the user
        left, or if the job was over before."""

    @abstractmethod
    def read_logs(self, query: LogQuery, write: Callable[[str, str], None]) -> None:
        """Read the output of processes and the events of the job.

        Args:
            write: called with the name of the process, or ``events``, and a line.

        Raises:
            UsageError: there is no such log.
        """


class Platform(ABC):
    """Where the processes of a job run: the machine of the command, or a cluster.

    An entry point of the group ``torch_edl.platforms`` names an object of this class, and the name
    of the entry point is the value of ``--platform``. Commands import the object for their help,
    so its module imports what else it needs late. The platform ``local`` is built in.

    Methods raise EdlError if the cluster does not answer, or rejects the request.
    """

    config: Any
    """Class of the part of a job's configuration that the platform adds: a frozen dataclass with
    keyword arguments, whose fields declare options of ``run`` with
    :func:`torch_edl.config.option.option`. Its method ``check_job(job)`` raises UsageError if a job
    cannot run on the platform. None if the platform has no options."""
    locators: tuple[str, ...] = ()
    """Fields of :attr:`config` by which all commands find a job, such as ``namespace``."""

    def implied(self, given: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return defaults of fields that depend on the options of the platform, by the part of the
        configuration.

        Args:
            given: fields of :attr:`config` that the user gave.
        """
        return {}

    @abstractmethod
    def check(self, args: argparse.Namespace, kind: str) -> Submission:
        """Check the job of a command, without running user code or starting anything.

        Args:
            args: options of ``run``, ``evaluate`` or ``predict``.
            kind: ``train``, ``evaluate``, ``predict`` or ``script``.

        Raises:
            UsageError: a value cannot work, or a file is missing.
        """

    @abstractmethod
    def show(self, submission: Submission, args: argparse.Namespace) -> int:
        """Print what the job would be (``--dry-run``), and return the exit code.

        Raises:
            UsageError: the job cannot run.
        """

    @abstractmethod
    def run(
        self, submission: Submission, args: argparse.Namespace, console: Console
    ) -> JobOutcome | None:
        """Start a job and show its progress until it is over. Ctrl-C stops the job.

        Returns:
            The outcome; None if the job continues without this command.
        """

    @abstractmethod
    def find(self, name: str | None, where: Mapping[str, str]) -> JobHandle:
        """Return a job.

        Args:
            name: name of the job; None: the newest one.
            where: values of :attr:`locators`; empty texts for options that were left out.

        Raises:
            UsageError: there is no such job.
        """

    @abstractmethod
    def jobs(self, where: Mapping[str, str]) -> list[JobHandle]:
        """Return all jobs, newest first."""

    def host(self, environment: Mapping[str, str]) -> Host:
        """Return the platform as the master of a job sees it; ``local`` is built into the master.

        The variable ``TORCH_EDL_PLATFORM`` of the master's environment names the platform.

        Args:
            environment: environment of the master.
        """
        raise NotImplementedError


class Host(ABC):
    """A platform as the master of a job sees it: from the place where the master itself runs.

    What is not abstract is as on a single machine, whose client starts the master again.
    """

    asks: bool = False
    """True if the processes are scheduled by a cluster, and the user's command runs elsewhere."""
    hands_over: bool = False
    """True if a terminated master may leave the job to a successor, see :meth:`leaves_job`."""
    final_codes: tuple[int, ...] = ()
    """Exit codes after which a master is not started again in its place; empty: the client decides
    whether the master is started again."""

    def schedules(self, config: JobConfig) -> bool:
        """Return True if the processes of a job may stay pending until there is room."""
        return self.asks

    def begin(self, job: str) -> int | None:
        """Check that a master may begin; return the exit code for a job that is already over.

        Raises:
            EdlError: the master lacks permissions, or the cluster does not answer.
        """
        return None

    @abstractmethod
    def prepare(self, job: str) -> JobConfig:
        """Return the configuration of the job, and prepare its folder.

        Raises:
            UsageError: the job cannot run here.
            OSError: the folder cannot be written.
        """

    def warnings(self, config: JobConfig) -> Sequence[str]:
        """Return the warnings for the user at the start of the job."""
        return ()

    @abstractmethod
    def launcher(self, config: JobConfig, token: str, incarnation: str) -> Launcher:
        """Return the launcher of the job's processes.

        Args:
            incarnation: name of the fleet, kept across restarts of the master.
        """

    @abstractmethod
    def temporary(self, config: JobConfig) -> Path:
        """Return the folder for files that processes exchange and that end with the job."""

    @abstractmethod
    def listen(self, earlier: str) -> str:
        """Return the ``host:port`` at which the master listens.

        Args:
            earlier: address of the earlier master; empty for the first one.
        """

    def address(self, job: str, address: str) -> str:
        """Return the address at which the processes of the job find the master.

        Args:
            address: address within this machine.
        """
        return address

    @abstractmethod
    def cores(self, config: JobConfig) -> int:
        """Return the number of CPU cores that all workers share."""

    def store(self, config: JobConfig) -> Store | None:
        """Open the store of a job that has no ``--store``; None: a file in the job's folder is
        enough.

        Raises:
            EdlError: the user must give the master a right, or name another store.
            OSError: the store cannot be opened.
        """
        return None

    def store_key(self, job: str) -> str:
        """Return a name of the job that is unique among all users of a ``--store``."""
        return job

    def workers_per_pod(self, config: JobConfig) -> int:
        """Return the number of workers that share a pod."""
        return 1

    def spares(self, config: JobConfig) -> int:
        """Return the number of idle pods to keep, each of which can take the process of a lost
        pod."""
        return 0

    def refused(self, error: Exception) -> int:
        """Return the exit code of a master that cannot begin."""
        return 2

    def tell_end(self, status: pb.GetStatusResponse) -> None:  # noqa: B027
        """Store the last status of the job for clients that ask later."""

    def leaves_job(self) -> bool:
        """Return True if a master that received a stop signal leaves the job to its successor;
        False if the job itself is to stop. Only called if :attr:`hands_over`."""
        return True

    def hand_over(self) -> None:  # noqa: B027
        """Have the next master started, after this one has released the job."""

    def exit_code(self, state: str, code: int, *, signalled: int) -> int:
        """Return the exit code of a master.

        Args:
            state: state in which the job ended; empty if the next master resumes the job.
            code: exit code that tells how the job ended.
            signalled: 128 + signal that stopped the master; 0 if there was none.
        """
        return (state == "stopped" and signalled) or code

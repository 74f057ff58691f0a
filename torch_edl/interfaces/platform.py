"""The interface of platforms: where the processes of a job run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from torch_edl.config import JobConfig
    from torch_edl.interfaces.store import Store
    from torch_edl.processes.launcher import Launcher
    from torch_edl.wire import master_pb2 as pb


class Platform(ABC):
    """Where the processes of a job run: the machine of the command, or a cluster.

    An entry point of the group ``torch_edl.platforms`` names an object of this class, and the name
    of the entry point is the value of ``--platform``. Commands import the object for their help,
    so its module imports what else it needs late. The platform ``local`` is built in.
    """

    @abstractmethod
    def host(self, environment: Mapping[str, str]) -> Host:
        """Return the platform as the master of a job sees it.

        The variable ``TORCH_EDL_PLATFORM`` of the master's environment has the name of the
        platform; without it, the processes run on the machine of the master.

        Args:
            environment: environment of the master.
        """


class Host(ABC):
    """A platform as the master of a job sees it: from the place where the master itself runs."""

    asks: bool
    """True if processes are scheduled by a cluster and may stay pending."""
    hands_over: bool
    """True if a terminated master leaves the job to its successor."""
    final_codes: tuple[int, ...] = ()
    """Exit codes after which a master is not started again in its place; empty: the client decides
    whether the master is started again."""

    @abstractmethod
    def begin(self, job: str) -> int | None:
        """Check that a master may begin.

        Returns:
            The exit code for a job that is already over; None if it is not.

        Raises:
            EdlError: the master lacks permissions, or the cluster does not answer.
        """

    @abstractmethod
    def prepare(self, job: str) -> JobConfig:
        """Return the configuration of the job, and prepare its folder.

        Raises:
            UsageError: the job cannot run here.
            OSError: the folder cannot be written.
        """

    @abstractmethod
    def warnings(self, config: JobConfig) -> Sequence[str]:
        """Return the warnings for the user at the start of the job."""

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

    @abstractmethod
    def address(self, job: str, address: str) -> str:
        """Return the address at which the processes of the job find the master.

        Args:
            address: address within this machine.
        """

    @abstractmethod
    def cores(self, config: JobConfig) -> int:
        """Return the number of CPU cores that all workers share."""

    @abstractmethod
    def store(self, config: JobConfig) -> Store | None:
        """Open the store of a job that has no ``--store``; None: a file in the job's folder is
        enough.

        Raises:
            EdlError: the user must give the master a right, or name another store.
            OSError: the store cannot be opened.
        """

    @abstractmethod
    def store_key(self, job: str) -> str:
        """Return a name of the job that is unique among all users of a ``--store``."""

    @abstractmethod
    def workers_per_pod(self, config: JobConfig) -> int:
        """Return the number of workers of a model file that share a pod."""

    @abstractmethod
    def agents(self, config: JobConfig) -> dict[str, Any]:
        """Return the agents of a script that the master starts; empty: a user starts them.

        The keys are ``agents`` (their number), ``workers_per_agent``, ``agent_args`` (words after
        ``torch-edl``) and ``agent_grace_s``.
        """

    @abstractmethod
    def refused(self, error: Exception) -> int:
        """Return the exit code of a master that cannot begin."""

    @abstractmethod
    def tell_end(self, status: pb.GetStatusResponse) -> None:
        """Store the last status of the job for clients that ask later."""

    @abstractmethod
    def hand_over(self) -> None:
        """Have the next master started, after this one has released the job."""

    @abstractmethod
    def exit_code(self, state: str, code: int, *, signalled: int) -> int:
        """Return the exit code of a master.

        Args:
            state: state in which the job ended; empty if the next master resumes the job.
            code: exit code that tells how the job ended.
            signalled: 128 + signal that stopped the master; 0 if there was none.
        """

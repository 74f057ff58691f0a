"""Where a master and its processes run: one machine, or a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from master.runtime.store.sqlite import SqliteStore
from master.state.lifecycle import Outcome
from torch_edl.config import JobConfig
from torch_edl.interfaces import Store
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.processes.launcher import Launcher
from torch_edl.processes.local import LocalLauncher
from torch_edl.processes.signals import StopSignals
from torch_edl.wire import master_pb2 as pb

_LOOPBACK = "127.0.0.1:0"
_USAGE = 2


class Platform(Protocol):
    """The differences between one machine and a cluster, as the master uses them."""

    asks: bool
    """True if processes are scheduled by a cluster and may stay pending."""
    hands_over: bool
    """True if a terminated master leaves the job to its successor."""

    def begin(self, job: str) -> int | None:
        """Check that a master may begin.

        Returns:
            The exit code for a job that is already over; None if it is not.

        Raises:
            EdlError: the master lacks permissions, or the cluster does not answer.
        """
        ...

    def prepare(self, folder: JobFolder) -> JobConfig:
        """Return the configuration of the job, after checking its folder.

        Raises:
            UsageError: the job cannot run here.
            OSError: the folder cannot be written.
        """
        ...

    def warnings(self, config: JobConfig) -> Sequence[str]:
        """Return the warnings for the user at the start of the job."""
        ...

    def launcher(
        self, config: JobConfig, folder: JobFolder, token: str, incarnation: str
    ) -> Launcher:
        """Return the launcher of the job's processes.

        Args:
            incarnation: name of the fleet, kept across restarts of the master.
        """
        ...

    def temporary(self, config: JobConfig, folder: JobFolder) -> Path:
        """Return the folder for files that processes exchange and that end with the job."""
        ...

    def listen(self, earlier: str) -> str:
        """Return the ``host:port`` at which the master listens.

        Args:
            earlier: address of the earlier master; empty for the first one.
        """
        ...

    def address(self, job: str, address: str) -> str:
        """Return the address at which the processes of the job find the master.

        Args:
            address: address within this machine.
        """
        ...

    def cores(self, config: JobConfig) -> int:
        """Return the number of CPU cores that all workers share."""
        ...

    def store(self, config: JobConfig, folder: JobFolder) -> Store:
        """Open the store of a job that has no ``--store``.

        Raises:
            EdlError: the user must give the master a right, or name another store.
            OSError: the store cannot be opened.
        """
        ...

    def store_key(self, job: str) -> str:
        """Return a name of the job that is unique among all users of an etcd."""
        ...

    def workers_per_pod(self, config: JobConfig) -> int:
        """Return the number of workers of a model file that share a pod."""
        ...

    def agents(self, config: JobConfig) -> dict[str, Any]:
        """Return arguments for :class:`ScriptFleet`: the agents that the master starts."""
        ...

    def refused(self, error: Exception) -> int:
        """Return the exit code of a master that cannot begin."""
        ...

    def tell_end(self, status: pb.GetStatusResponse) -> None:
        """Store the last status of the job for clients that ask later."""
        ...

    def hand_over(self) -> None:
        """Have the next master started, after this one has released the job."""
        ...

    def exit_code(self, outcome: Outcome | None, stop: StopSignals) -> int:
        """Return the exit code of a master.

        Args:
            outcome: outcome of the job; None if the next master resumes it.
        """
        ...


class Machine:
    """All processes run on this machine.

    Args:
        listen: address from the command line; empty for that of the earlier master, or loopback.
    """

    asks = False
    hands_over = False

    def __init__(self, listen: str) -> None:
        self._listen = listen

    def begin(self, job: str) -> int | None:
        return None

    def prepare(self, folder: JobFolder) -> JobConfig:
        return folder.config()

    def warnings(self, config: JobConfig) -> Sequence[str]:
        return ()

    def launcher(
        self, config: JobConfig, folder: JobFolder, token: str, incarnation: str
    ) -> Launcher:
        return LocalLauncher(folder.logs, token=token)

    def temporary(self, config: JobConfig, folder: JobFolder) -> Path:
        return folder.dir

    def listen(self, earlier: str) -> str:
        return self._listen or earlier or _LOOPBACK

    def address(self, job: str, address: str) -> str:
        return address

    def cores(self, config: JobConfig) -> int:
        return len(os.sched_getaffinity(0))

    def store(self, config: JobConfig, folder: JobFolder) -> Store:
        return SqliteStore(folder.dir / "state.sqlite")

    def store_key(self, job: str) -> str:
        return job

    def workers_per_pod(self, config: JobConfig) -> int:
        return 1

    def agents(self, config: JobConfig) -> dict[str, Any]:
        return {}

    def refused(self, error: Exception) -> int:
        return _USAGE

    def tell_end(self, status: pb.GetStatusResponse) -> None:
        """Do nothing: the status file in the job's folder has it."""

    def hand_over(self) -> None:
        """Do nothing: the client starts the next master."""

    def exit_code(self, outcome: Outcome | None, stop: StopSignals) -> int:
        assert outcome is not None
        stopped = outcome.state == "stopped" and stop.exit_code
        return stop.exit_code if stopped else outcome.exit_code

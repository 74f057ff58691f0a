"""Where a master and its processes run: what differs from place to place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from master.state.lifecycle import Outcome
from torch_edl.config import JobConfig
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.processes.launcher import Launcher
from torch_edl.processes.local import LocalLauncher
from torch_edl.processes.signals import StopSignals
from torch_edl.wire import master_pb2 as pb

_LOOPBACK = "127.0.0.1:0"
_USAGE = 2


class Platform(Protocol):
    """One machine, or a cluster."""

    asks: bool
    """Processes are asked for, and run when there is room."""
    hands_over: bool
    """A master that is asked to end leaves the job to the next one."""

    def begin(self, job: str) -> int | None:
        """Make sure that a master may begin.

        Returns:
            The exit code of a master whose job is over; None: the job is not.

        Raises:
            EdlError: the master may not do what it must, or nobody answers.
        """
        ...

    def prepare(self, folder: JobFolder) -> JobConfig:
        """The configuration of the job, with whose folder all is well.

        Raises:
            UsageError: the job cannot run here.
            OSError: the folder cannot be written.
        """
        ...

    def warnings(self, config: JobConfig) -> Sequence[str]:
        """What the user is to know when the job starts."""
        ...

    def launcher(
        self, config: JobConfig, folder: JobFolder, token: str, incarnation: str
    ) -> Launcher:
        """Starts the processes.

        Args:
            incarnation: of the state of the job.
        """
        ...

    def temporary(self, config: JobConfig, folder: JobFolder) -> Path:
        """The folder for what the processes hand to each other and nobody keeps."""
        ...

    def listen(self, earlier: str) -> str:
        """Where the master listens.

        Args:
            earlier: where the master before did; empty: this is the first one.
        """
        ...

    def address(self, job: str, address: str) -> str:
        """Where the processes of the job find the master.

        Args:
            address: where this process does.
        """
        ...

    def cores(self, config: JobConfig) -> int:
        """Cores that all workers share."""
        ...

    def store_key(self, job: str) -> str:
        """Names the job among all that share an etcd."""
        ...

    def workers_per_pod(self, config: JobConfig) -> int:
        """How many workers of a model file share a pod."""
        ...

    def agents(self, config: JobConfig) -> dict[str, Any]:
        """The agents of a script that the master is to start: arguments of its fleet."""
        ...

    def refused(self, error: Exception) -> int:
        """The exit code of a master that cannot begin."""
        ...

    def tell_end(self, status: pb.GetStatusResponse) -> None:
        """Leaves the last status of the job where clients find it that come later."""
        ...

    def hand_over(self) -> None:
        """Has the next master started; this one has let go of the job."""
        ...

    def exit_code(self, outcome: Outcome | None, stop: StopSignals) -> int:
        """The exit code of a master.

        Args:
            outcome: of the job; None: the next master goes on.
        """
        ...


class Machine:
    """All processes run on this machine.

    Args:
        listen: as the command says; empty: where the master before did, or at loopback.
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

    def store_key(self, job: str) -> str:
        return job

    def workers_per_pod(self, config: JobConfig) -> int:
        return 1

    def agents(self, config: JobConfig) -> dict[str, Any]:
        return {}

    def refused(self, error: Exception) -> int:
        return _USAGE

    def tell_end(self, status: pb.GetStatusResponse) -> None:
        """The folder of the job has it."""

    def hand_over(self) -> None:
        """The client starts it."""

    def exit_code(self, outcome: Outcome | None, stop: StopSignals) -> int:
        assert outcome is not None
        stopped = outcome.state == "stopped" and stop.exit_code
        return stop.exit_code if stopped else outcome.exit_code

"""A master whose processes run on its own machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.interfaces.platform import Host
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.processes.launcher import Launcher
from torch_edl.processes.local import LocalLauncher
from torch_edl.wire import master_pb2 as pb

_LOOPBACK = "127.0.0.1:0"
_USAGE = 2


class Machine(Host):
    """All processes run on this machine. The address to listen at is that of the command line, of
    the earlier master, or loopback."""

    asks = False
    hands_over = False

    def __init__(self, listen: str) -> None:
        self._listen = listen

    def begin(self, job: str) -> int | None:
        return None

    def prepare(self, job: str) -> JobConfig:
        return JobFolder(job).config()

    def warnings(self, config: JobConfig) -> Sequence[str]:
        return ()

    def launcher(self, config: JobConfig, token: str, incarnation: str) -> Launcher:
        return LocalLauncher(JobFolder(config.name).logs, token=token)

    def temporary(self, config: JobConfig) -> Path:
        return JobFolder(config.name).dir

    def listen(self, earlier: str) -> str:
        return self._listen or earlier or _LOOPBACK

    def address(self, job: str, address: str) -> str:
        return address

    def cores(self, config: JobConfig) -> int:
        return len(os.sched_getaffinity(0))

    def store(self, config: JobConfig) -> None:
        """Return None: a file in the folder of the job is enough."""

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

    def exit_code(self, state: str, code: int, *, signalled: int) -> int:
        return (state == "stopped" and signalled) or code

"""A master whose processes run on its own machine."""

from __future__ import annotations

import os
from pathlib import Path

from torch_edl.config import JobConfig
from torch_edl.interfaces.platform import Host
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.processes.launcher import Launcher
from torch_edl.processes.local import LocalLauncher

_LOOPBACK = "127.0.0.1:0"


class Machine(Host):
    """All processes run on this machine. The address to listen at is that of the command line, of
    the earlier master, or loopback."""

    def __init__(self, listen: str) -> None:
        self._listen = listen

    def prepare(self, job: str) -> JobConfig:
        return JobFolder(job).config()

    def launcher(self, config: JobConfig, token: str, incarnation: str) -> Launcher:
        return LocalLauncher(JobFolder(config.name).logs, token=token)

    def temporary(self, config: JobConfig) -> Path:
        return JobFolder(config.name).dir

    def listen(self, earlier: str) -> str:
        return self._listen or earlier or _LOOPBACK

    def cores(self, config: JobConfig) -> int:
        return len(os.sched_getaffinity(0))

"""The site of a job on this machine; its processes receive signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch_edl.config.environment import ENV_TOKEN
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import ENDED, MasterAddress
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.chaos.site import EXITED
from torch_edl.plugins.chaos.storm import Blow, Target
from torch_edl.wire import master_pb2 as pb


class MachineSite:
    """Implements :class:`torch_edl.plugins.chaos.site.Site` for a job on this machine.

    A process is held by a pidfd, which stays valid if the pid is reused. A process belongs to the
    job if its environment has the secret token of the job. This excludes processes on other
    machines and processes that received an old pid.

    Raises:
        UsageError: the job does not run on this machine.
    """

    where = "on this machine"

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        self._mark = f"{ENV_TOKEN}={_running(job).token}".encode()
        self.config, self.ask, self.has_master = job.config, job.ask, job.has_master

    def living(self, listed: Iterable[pb.ProcessStatus]) -> list[Target]:
        found = []
        for process in listed:
            target = Target(process.role, process.id, process.pid)
            if process.state != EXITED and process.pid > 0:
                with self._held(target) as fd:
                    found += [target] if fd is not None else []
        return found

    def out_of_reach(self, listed: Iterable[pb.ProcessStatus]) -> int:
        running = [process for process in listed if process.pid and process.state != EXITED]
        return len(running) - len(self.living(running))

    def strike(self, blow: Blow) -> bool:
        with self._held(blow.target) as fd:
            return fd is not None and _send(fd, blow.number)

    def end(self) -> tuple[str, str]:
        found = self._job.report()
        return found["state"], found.get("error", "")

    def close(self) -> None:
        return

    @contextlib.contextmanager
    def _held(self, target: Target) -> Iterator[int | None]:
        try:
            fd = os.pidfd_open(target.pid)
        except OSError:  # the process is gone
            yield None
            return
        try:
            # Signal 0 confirms that the process still ran after its environment was read, so that
            # the pid was not reused in between.
            yield fd if self._is_ours(target) and _send(fd, 0) else None
        finally:
            os.close(fd)

    def _is_ours(self, target: Target) -> bool:
        try:
            environment = Path(f"/proc/{target.pid}/environ").read_bytes()
        except OSError:  # the process is gone, or belongs to another user
            return False
        return self._mark in environment.split(b"\0")


def _send(fd: int, number: int) -> bool:
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:  # ended
        return False
    return True


def _running(job: LocalJob) -> MasterAddress:
    """Return the address of the master of a job that runs on this machine.

    Raises:
        UsageError: the job does not run on this machine, or belongs to another user.
    """
    if job.master_file.exists() and not os.access(job.master_file, os.R_OK):
        raise UsageError(
            f"{job.name}: the job of another user; run torch-edl chaos as the user that started it"
        )
    master = job.master()
    if master is None or not job.is_alive():
        state = job.report()["state"]
        if state in ENDED:
            raise UsageError(f"{job.name}: the job is over, it is {state}")
        raise UsageError(
            f"{job.name}: its master does not run on this machine; start torch-edl chaos where "
            "the job was started, see torch-edl status"
        )
    return master

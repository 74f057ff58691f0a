"""The site of a job on this machine; its processes receive signals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import ENDED, MasterAddress
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.chaos.site import EXITED
from torch_edl.plugins.chaos.storm import Blow, Target
from torch_edl.plugins.chaos.targets import Processes
from torch_edl.wire import master_pb2 as pb


class MachineSite:
    """Implements :class:`torch_edl.plugins.chaos.site.Site` for a job on this machine.

    Raises:
        UsageError: the job does not run on this machine.
    """

    where = "on this machine"

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        self._processes = Processes(_running(job).token)

    def config(self) -> JobConfig:
        return self._job.config()

    def ask(self, request: Message) -> Any:
        return self._job.ask(request)

    def living(self, listed: Iterable[pb.ProcessStatus]) -> list[Target]:
        return self._processes.living(listed)

    def out_of_reach(self, listed: Iterable[pb.ProcessStatus]) -> int:
        running = [process for process in listed if process.pid and process.state != EXITED]
        return len(running) - len(self.living(running))

    def strike(self, blow: Blow) -> bool:
        return self._processes.send(blow.target, blow.number)

    def has_master(self) -> bool:
        return self._job.has_master()

    def end(self) -> tuple[str, str]:
        found = self._job.report()
        return found["state"], found.get("error", "")

    def close(self) -> None:
        return


def _running(job: LocalJob) -> MasterAddress:
    """Return the address of the master of a job that runs on this machine.

    Raises:
        UsageError: the job does not run on this machine, or belongs to another user.
    """
    if job.master_file.exists() and not _readable(job):
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


def _readable(job: LocalJob) -> bool:
    try:
        job.master_file.read_bytes()
    except PermissionError:
        return False
    except OSError:
        return True
    return True

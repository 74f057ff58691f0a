"""A running or ended job of this machine, as commands see it, and the calls to its master."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import JobHandle, LogQuery
from torch_edl.launch.jobs import logs
from torch_edl.launch.jobs.folder import ENDED, JobFolder, MasterAddress
from torch_edl.launch.jobs.status import EMPTY, as_dict
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import REFUSED, Stub, unanswered

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console

CALL_TIMEOUT_S = 5.0


class LocalJob(JobFolder, JobHandle):
    """Implements :class:`~torch_edl.interfaces.JobHandle` with the folder of a job."""

    where = ""

    @property
    def place(self) -> str:
        return str(self.dir)

    def ask(self, request: Message) -> Any:
        master = self.master()
        if master is None or not self.has_master():
            state = self.last_status().get("state", "dead")
            raise UsageError(f"{self.name}: no longer runs, it is {state}")
        stub = stub_of(master)
        try:
            # A killed master is restarted in less time.
            return stub.call(request, timeout_s=CALL_TIMEOUT_S, wait=True)
        except grpc.RpcError as error:
            if error.code() not in REFUSED and not self.has_master():
                raise UsageError(f"{self.name}: it ended just now; see torch-edl status") from error
            raise refused(self.name, error) from error
        finally:
            stub.close()

    def status(self) -> pb.GetStatusResponse | None:
        """Return the status from the job's master; None if no master answers."""
        try:
            status: pb.GetStatusResponse = self.ask(pb.GetStatusRequest())
        except UsageError:
            return None
        return status

    def report(self) -> dict[str, Any]:
        """Return the status of the job as plain data.

        If no master answers, the last status in the job's folder is returned. Its state is
        ``finished``, ``failed`` or ``stopped`` if the master or the client has recorded the end,
        and ``dead`` if the master is gone without a record.
        """
        status = self.status()
        if status is not None:
            return as_dict(status)
        seen: dict[str, Any] = {"job": self.name, **EMPTY, **self.last_status()}
        if self.master() is None and self.is_watched():
            return {**seen, "state": "starting"}
        if self.has_master():  # but the master does not answer, or is started again
            return seen
        if seen.get("state") not in ENDED:
            seen["state"] = "dead"
        seen["processes"] = [{**p, "state": "exited"} for p in seen["processes"]]
        seen["rates"] = {}
        return seen

    def is_gone(self) -> bool:
        watched = self.is_watched() and self.last_status().get("state") not in ENDED
        return not self.is_alive() and not watched

    def remove(self) -> None:
        shutil.rmtree(self.dir)

    def attach(self, console: Console) -> None:
        raise UsageError(
            f"{self.name}: the command that started it shows its progress; torch-edl logs "
            f"{self.name} --follow shows its events and output"
        )

    def read_logs(self, query: LogQuery, write: Callable[[str, str], None]) -> None:
        logs.read(self, self.report, query, write)


def stub_of(master: MasterAddress) -> Stub:
    """Return a stub for a master, which connects on first use."""
    return Stub(services.CONTROL, master.address, master.token)


def refused(job: str, error: grpc.RpcError) -> UsageError:
    """Return the error for the user after a failed call."""
    if error.code() in REFUSED:
        return UsageError(f"{job}: {error.details()}")
    return UsageError(f"{job}: its master does not answer: {unanswered(error)}")

"""Single calls to the master of a job of this machine."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import JobFolder, MasterAddress
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import REFUSED, Stub, unanswered

CALL_TIMEOUT_S = 5.0


def stub_of(master: MasterAddress) -> Stub:
    """Return a stub for a master, which connects on first use."""
    return Stub(services.CONTROL, master.address, master.token)


def ask(job: JobFolder, request: Message) -> Any:
    """Make one call to the job's master and return the answer.

    Raises:
        UsageError: the job is over, or the master rejected the call.
    """
    master = job.master()
    if master is None or not job.has_master():
        state = job.last_status().get("state", "dead")
        raise UsageError(f"{job.name}: not running any more, it is {state}")
    stub = stub_of(master)
    try:
        # A killed master is restarted in less time.
        return stub.call(request, timeout_s=CALL_TIMEOUT_S, wait=True)
    except grpc.RpcError as error:
        if error.code() not in REFUSED and not job.has_master():
            raise UsageError(f"{job.name}: it ended just now; see torch-edl status") from error
        raise refused(job.name, error) from error
    finally:
        stub.close()


def refused(job: str, error: grpc.RpcError) -> UsageError:
    """Return the error for the user after a failed call."""
    if error.code() in REFUSED:
        return UsageError(f"{job}: {error.details()}")
    return UsageError(f"{job}: its master does not answer: {unanswered(error)}")


def get_status(job: JobFolder) -> pb.GetStatusResponse | None:
    """Return the status from the job's master; None if no master answers."""
    try:
        status: pb.GetStatusResponse = ask(job, pb.GetStatusRequest())
    except UsageError:
        return None
    return status

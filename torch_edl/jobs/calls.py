"""Calls to the master of a job of this machine, for commands that need one answer."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.errors import UsageError
from torch_edl.jobs.folder import JobFolder, MasterAddress
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import REFUSED, Stub, unanswered

CALL_TIMEOUT_S = 5.0


def stub_of(master: MasterAddress) -> Stub:
    """A stub of a master, connected when first used."""
    return Stub(services.CONTROL, master.address, master.token)


def ask(job: JobFolder, request: Message) -> Any:
    """Makes one call to the job's master.

    Raises:
        UsageError: the job is over, or the master rejected the call.
    """
    master = job.master()
    if master is None or not job.has_master():
        state = job.last_status().get("state", "dead")
        raise UsageError(f"{job.name}: not running any more, it is {state}")
    stub = stub_of(master)
    try:
        # A master that was killed is started again, which takes less.
        return stub.call(request, timeout_s=CALL_TIMEOUT_S, wait=True)
    except grpc.RpcError as error:
        if error.code() not in REFUSED and not job.has_master():
            raise UsageError(f"{job.name}: it ended just now; see torch-edl status") from error
        raise refused(job.name, error) from error
    finally:
        stub.close()


def refused(job: str, error: grpc.RpcError) -> UsageError:
    """What a call that failed means for the user."""
    if error.code() in REFUSED:
        return UsageError(f"{job}: {error.details()}")
    return UsageError(f"{job}: its master does not answer: {unanswered(error)}")


def get_status(job: JobFolder) -> pb.GetStatusResponse | None:
    """The status from the job's master; None if no master answers."""
    try:
        status: pb.GetStatusResponse = ask(job, pb.GetStatusRequest())
    except UsageError:
        return None
    return status

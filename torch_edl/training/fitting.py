"""The part of a worker in fitting the preprocessing of its job, before training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch_edl.errors import EdlError, UserCodeError, describe_error
from torch_edl.interfaces.preprocessing import Fittable
from torch_edl.master_client.leases import HeldLease, LeaseClient, TaskResult
from torch_edl.master_client.session import MasterSession
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


def fit(columns: Fittable, read: Callable[[HeldLease], Any], master: MasterSession) -> None:
    """Lease fitting tasks and report their statistics, until no task is left or this worker
    leaves.

    Args:
        columns: the preprocessing to fit.
        read: returns the records of a task.

    Raises:
        UsageError: the records do not match the columns.
        UserCodeError: user code that parses records raised.
        MasterLostError: the master does not answer.
    """
    master.progress.phase = "fitting"
    leases = LeaseClient(master.master, master.worker_id)
    heartbeat = master.heartbeat
    while not heartbeat.lost.is_set():
        answer = leases.lease(fit=True)
        if answer.next != pb.LeaseResponse.LEASED or not answer.leases:
            break
        for message in answer.leases:
            lease = HeldLease.from_proto(message)
            if heartbeat.draining.is_set():
                leases.release(lease)
            else:
                leases.complete(lease, _observed(columns, read, lease))
    master.progress.phase = "waiting"


def _observed(columns: Fittable, read: Callable[[HeldLease], Any], lease: HeldLease) -> TaskResult:
    """Return the statistics of a task's records."""
    records = read(lease)
    statistics = columns.statistics()
    try:
        statistics.observe(records)
    except EdlError:
        raise
    except Exception as error:
        raise UserCodeError(f"the preprocessing raised {describe_error(error)}") from error
    return TaskResult(records=lease.end - lease.start, statistics=statistics.to_bytes())

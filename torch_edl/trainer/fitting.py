"""A worker's part in fitting the preprocessing of a model file, before it trains."""

from __future__ import annotations

import logging

from torch_edl.data.task_space import Shard, Task
from torch_edl.errors import EdlError, UserCodeError, describe_error
from torch_edl.master_client.leases import Lease, LeaseClient, TaskResult
from torch_edl.master_client.session import MasterSession
from torch_edl.trainer.user_model import UserModel
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


def fit(file: UserModel, master: MasterSession) -> None:
    """Observes the tasks that nobody has, one by one, until there are none or this worker leaves.

    Raises:
        UsageError: the records are not what the columns take.
        UserCodeError: the user's code that parses records raised.
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
            lease = Lease.from_proto(message)
            if heartbeat.draining.is_set():
                leases.release(lease)
            else:
                leases.complete(lease, _observed(file, lease))
    master.progress.phase = "waiting"


def _observed(file: UserModel, lease: Lease) -> TaskResult:
    """The statistics of a task."""
    columns = file.functions.preprocessing
    assert columns is not None
    counted = Shard(lease.shard, lease.shard_records, lease.shard_size, lease.shard_mtime_ns)
    task = Task(lease.task_id, lease.epoch, lease.shard, lease.start, lease.end)
    records = file.feeder.reader.read(task, counted, shuffled=False)
    statistics = columns.statistics()
    try:
        statistics.observe(records)
    except EdlError:
        raise
    except Exception as error:
        raise UserCodeError(f"the preprocessing raised {describe_error(error)}") from error
    return TaskResult(records=task.records, statistics=statistics.to_bytes())

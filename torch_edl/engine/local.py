"""Engine of a single worker that holds the whole model, without servers.

A minibatch is committed when the optimizer has stepped. If the process ends, the model is lost, so
the master takes the tasks back to the last checkpoint when it starts another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.engine.replica import ModelReplica
from torch_edl.interfaces import Minibatch, Update
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import HeldLease
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


class LocalEngine:
    """See :class:`~torch_edl.interfaces.LeasedEngine`."""

    depth = 0
    holds_model = True
    broken = False

    def __init__(self, held: ModelReplica, *, status: WorkerStatus) -> None:
        self.model = held.model
        self._status = status
        self._held = held
        held.check_tables()
        self._watermarks = Watermarks()
        self._done: list[Update] = []

    def connect(self, cluster: pb.Cluster) -> None:
        """Load the checkpoint or exported model that the cluster names, on the first call."""
        if cluster.restored_from and self._watermarks == Watermarks():
            folder = Path(cluster.restored_from)
            manifest = self._held.restore(folder, values_only=cluster.values_only)
            if manifest is not None:
                self._watermarks = manifest.watermarks.copy()

    def committed(self, lease: HeldLease) -> int:
        """Return the number of records that this process trained or restored."""
        return self._watermarks.offset(lease.task_id)

    def prefetch(self, update: Update) -> None:
        """Do nothing: the model is in this process."""

    def begin(self, update: Update, minibatch: Minibatch) -> Any:
        """Commit the minibatches before this one, since the rest of the update may fail."""
        self._watermarks.advance(_task(update), minibatch.first)
        return minibatch.batch

    def backward(self, compute: Callable[[], None] | None) -> bool:
        if compute is not None:
            compute()
        return compute is not None

    def commit(self, update: Update) -> bool:
        self._held.position.step += update.count
        self._status.version = self._held.position.step
        self._watermarks.advance(_task(update), update.last)
        self._watermarks.retire(update.retired_before)
        self._done.append(update)
        return True

    def acknowledged(self, *, wait: bool = False) -> list[Update]:
        done, self._done = self._done, []
        return done

    def settle(self) -> bool:
        """Return False: the steps are in the model, but the rest of the update is not."""
        return False

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        yield lambda features: features

    def close(self) -> None:
        self._done.clear()

    def snapshot(self) -> Callable[[Path], Snapshot]:
        return self._held.snapshot(self._watermarks.copy())


def _task(update: Update) -> int:
    assert update.lease is not None, "this engine trains leased tasks"
    return int(update.lease.task_id)

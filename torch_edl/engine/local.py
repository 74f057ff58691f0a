"""One worker that holds the whole model: any torch optimizer, no servers.

A minibatch is committed when the optimizer has stepped. The model lives and dies with the process,
so the master takes the tasks back to the last checkpoint when it starts another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.data.batch import Minibatch, Update
from torch_edl.engine.replica import Replica
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import Lease
from torch_edl.optim import optimizer_config
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


class LocalEngine:
    """See :class:`~torch_edl.engine.base.LeasedEngine`."""

    depth = 0
    knows_marks = True
    broken = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        *,
        status: WorkerStatus,
    ) -> None:
        self.model = model
        self._status = status
        self._replica = Replica(model, [optimizer], [] if scheduler is None else [scheduler])
        if self._replica.tables:
            optimizer_config(optimizer)  # refused now rather than at the first step
        self._watermarks = Watermarks()
        self._done: list[Update] = []

    def connect(self, cluster: pb.Cluster) -> None:
        """Loads the checkpoint (or the exported model) that the cluster names, the first time."""
        if cluster.restored_from and self._watermarks == Watermarks():
            manifest = self._replica.restore(
                Path(cluster.restored_from), strategy="local", values_only=cluster.values_only
            )
            if manifest is not None:
                self._watermarks = manifest.watermarks.copy()

    def committed(self, lease: Lease) -> int:
        """What this process trained, or found in its checkpoint."""
        return self._watermarks.offset(lease.task_id)

    def prefetch(self, update: Update) -> None:
        """Nothing has to be fetched."""

    def begin(self, update: Update, minibatch: Minibatch) -> Any:
        """Each minibatch is committed by itself: what comes after it may fail and be retried."""
        self._watermarks.advance(_task(update), minibatch.first)
        return minibatch.batch

    def backward(self, compute: Callable[[], None] | None) -> bool:
        if compute is not None:
            compute()
        return compute is not None

    def commit(self, update: Update) -> bool:
        self._replica.position.step += update.count
        self._status.version = self._replica.position.step
        self._watermarks.advance(_task(update), update.last)
        self._watermarks.retire(update.retired_before)
        self._done.append(update)
        return True

    def acknowledged(self, *, wait: bool = False) -> list[Update]:
        done, self._done = self._done, []
        return done

    def settle(self) -> bool:
        """What was stepped is in the model; the rest of the update is not."""
        return False

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        yield lambda features: features

    def close(self) -> None:
        self._done.clear()

    def snapshot(self) -> Callable[[Path], Snapshot]:
        return self._replica.snapshot(self._watermarks.copy())


def _task(update: Update) -> int:
    assert update.lease is not None, "this engine trains leased tasks"
    return int(update.lease.task_id)

"""One worker that holds the whole model: any torch optimizer, no servers.

A window is committed when it was trained. The model lives and dies with the process, so the
master takes the tasks back to the last checkpoint when it starts another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.config import JobConfig
from torch_edl.contract import Contract
from torch_edl.data.loader import Window
from torch_edl.engine import replica
from torch_edl.engine.base import Committed, Step
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.optim import optimizer_config
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


class LocalStrategy:
    """See :class:`~torch_edl.engine.base.Strategy`."""

    depth = 0

    def __init__(
        self,
        contract: Contract,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        *,
        config: JobConfig,
        progress: WorkerStatus,
    ) -> None:
        self.model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._progress = progress
        self._replica = replica.Replica(
            model, [optimizer], [] if scheduler is None else [scheduler]
        )
        if self._replica.tables:
            optimizer_config(optimizer)  # refused now rather than at the first step
        self._watermarks = Watermarks()
        self._step = Step(
            contract, model, on_nan=config.train.on_nan, log_layers=config.train.log_layers
        )

    def connect(self, cluster: pb.Cluster) -> None:
        """Loads the checkpoint (or the exported model) that the cluster names, the first time."""
        if cluster.restored_from and self._watermarks == Watermarks():
            manifest = self._replica.restore(
                Path(cluster.restored_from), strategy="local", values_only=cluster.values_only
            )
            if manifest is not None:
                self._watermarks = manifest.watermarks.copy()

    def committed(self, lease: pb.LeaseMessage) -> int:
        """What this process trained, or found in its checkpoint."""
        return self._watermarks.offset(lease.task_id)

    def prefetch(self, window: Window) -> None:
        """Nothing has to be fetched."""

    def train(self, window: Window, retired_before: int) -> list[Committed]:
        """Steps the user's optimizer once for each minibatch."""
        nan_steps = 0
        task = window.lease.task_id
        for batch, start in zip(window.batches, window.starts, strict=True):
            # Each minibatch is committed by itself: what comes after it may fail and be retried.
            self._watermarks.advance(task, min(start, window.last))
            self._optimizer.zero_grad()
            loss = self._step.loss(batch)
            if loss is None:
                nan_steps += 1
                continue
            self._step.backward(loss, batch)
            self._optimizer.step()
            if self._scheduler is not None:
                self._scheduler.step()
            self._progress.add_loss(self._step.last_loss)
        self._replica.position.step += len(window.batches)
        self._progress.version = self._replica.position.step
        self._watermarks.advance(task, window.last)
        self._watermarks.retire(retired_before)
        return [Committed(window, len(window.batches), nan_steps, self._step.last_loss)]

    def finish(self) -> list[Committed]:
        """Everything is committed already."""
        return []

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        """The model as it is."""
        self.model.eval()
        try:
            with torch.no_grad():
                yield self._step.predict
        finally:
            self.model.train()

    def close(self) -> None:
        """There is nothing to let go of."""

    def snapshot(self, directory: str) -> Snapshot:
        """Writes the model and its optimizer; the master makes a checkpoint of them."""
        return Snapshot(
            files=replica.write(self._replica.copy(), Path(directory)),
            watermarks=self._watermarks.copy(),
            version=self._replica.position.step,
        )

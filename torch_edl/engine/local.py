"""One worker that holds the whole model: any torch optimizer, no servers.

A window is committed when it was trained. The model lives and dies with the process, so the
master takes the tasks back to the last checkpoint when it starts another worker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.writer import write_tables
from torch_edl.config import JobConfig
from torch_edl.contract import Contract
from torch_edl.data.loader import Window
from torch_edl.engine import same_model
from torch_edl.engine.base import Committed, Step
from torch_edl.engine.replica import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    flatten_optimizer,
    from_json,
    jsonable,
    unflatten_optimizer,
)
from torch_edl.kernels import group_of, read_optimizer
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.nn.local_rows import LocalRows
from torch_edl.nn.model_tables import bind_tables, dense_names
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

_STEM = "shard-0-of-1"


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
        self._tables = bind_tables(model)
        if self._tables:
            read_optimizer(optimizer)  # refused now rather than at the first step
        self._marks: dict[int, int] = {}
        self._retired_before = 0
        self._steps = 0
        self._step = Step(
            contract, model, on_nan=config.train.on_nan, log_layers=config.train.log_layers
        )

    def connect(self, cluster: pb.Cluster) -> None:
        """Loads the checkpoint (or the exported model) that the cluster names, the first time."""
        if cluster.restored_from and not self._steps and not self._marks:
            self._restore(Path(cluster.restored_from), values_only=cluster.values_only)

    def committed(self, lease: pb.LeaseMessage) -> int:
        """What this process trained, or found in its checkpoint."""
        return self._marks.get(lease.task_id, 0)

    def prefetch(self, window: Window) -> None:
        """Nothing has to be fetched."""

    def train(self, window: Window, retired_before: int) -> list[Committed]:
        """Steps the user's optimizer once for each minibatch."""
        nan_steps = 0
        task = window.lease.task_id
        for batch, start in zip(window.batches, window.starts, strict=True):
            # Each minibatch is committed by itself: what comes after it may fail and be retried.
            self._marks[task] = min(start, window.last)
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
        self._steps += len(window.batches)
        self._progress.version = self._steps
        self._marks[window.lease.task_id] = window.last
        if retired_before > self._retired_before:
            self._retired_before = retired_before
            self._marks = {t: m for t, m in self._marks.items() if t >= retired_before}
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

    # ---- checkpoints ----

    def snapshot(self, directory: str) -> Snapshot:
        """Writes model and optimizer; the master makes a checkpoint of it."""
        folder = Path(directory)
        dense = {n: t.detach().clone().contiguous() for n, t in self._dense().items()}
        safetensors.torch.save_file(dense, folder / MODEL_FILE)
        tensors, described = flatten_optimizer(self._optimizer.state_dict())
        if self._scheduler is not None:
            described["scheduler"] = jsonable(self._scheduler.state_dict())
        tensors = {name: slot.clone().contiguous() for name, slot in tensors.items()}
        safetensors.torch.save_file(
            tensors, folder / OPTIMIZER_FILE, metadata={"state": json.dumps(described)}
        )
        tables = [(rows.table, rows.table.step) for rows in self._rows().values()]
        for table, _ in tables:
            table.core.begin_snapshot()
        files = [MODEL_FILE, OPTIMIZER_FILE, *write_tables(tables, folder, _STEM)]
        return Snapshot(
            files={name: os.path.getsize(folder / name) for name in files},
            watermarks=Watermarks(self._retired_before, dict(self._marks)),
            version=self._steps,
        )

    def _dense(self) -> dict[str, torch.Tensor]:
        return {name: getattr(part, key) for name, part, key, _ in dense_names(self.model)}

    def _rows(self) -> dict[str, LocalRows]:
        """The rows of each table, by its name."""
        return {t.table: t.store for t in self._tables if isinstance(t.store, LocalRows)}

    def _restore(self, folder: Path, *, values_only: bool) -> None:
        source = CheckpointReader(folder, values_only=values_only, strategy="local")
        self._load_dense(source, folder)
        group = group_of(self._optimizer)
        for module in self._tables:
            if isinstance(module.store, LocalRows):
                module.store.use_kernel(self._optimizer, group(module.weight))
                module.store.restore(source.table(module.table))
        if values_only or not layout.is_checkpoint(folder):
            return
        manifest = source.manifest
        self._marks = dict(manifest.watermarks.offsets)
        self._retired_before = manifest.watermarks.retired_before
        self._steps = manifest.versions[0] if manifest.versions else manifest.steps
        with safe_open(folder / OPTIMIZER_FILE, "pt") as file:
            described = json.loads(file.metadata()["state"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        self._optimizer.load_state_dict(unflatten_optimizer(tensors, described))
        if self._scheduler is not None and "scheduler" in described:
            self._scheduler.load_state_dict(from_json(described["scheduler"]))

    def _load_dense(self, source: CheckpointReader, folder: Path) -> None:
        values, _ = source.dense()
        tables = {t.table for t in self._tables}
        shapes: dict[str, tuple[Any, ...]] = {n: value.shape for n, value in values.items()}
        for name in source.tables.keys() - tables:
            # It was on servers, because it was large for them; here it is a plain weight.
            info = source.tables[name].info
            shape = (int(info["num_embeddings"]) or "any id", int(info["dim"]))
            shapes |= {f"{path}.weight": shape for path in source.tables[name].modules}
        wanted = {name: tensor.shape for name, tensor in self._dense().items()}
        ours = {f"{name}.weight" for name in tables}
        given = {name: shape for name, shape in shapes.items() if name not in ours}
        same_model.check(given, wanted, where=folder)
        for name in source.tables.keys() - tables:
            table = source.tables[name]
            values |= {f"{path}.weight": table.weight() for path in table.modules}
        self.model.load_state_dict(
            {name: torch.from_numpy(values[name]) for name in wanted}, strict=False
        )

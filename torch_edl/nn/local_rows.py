"""Rows in this process: the store of an embedding that is not connected to servers.

A torch optimizer does not know about rows. A hook after its ``step`` updates the rows of every
table whose ``weight`` the optimizer has, with the kernel and the hyperparameters of the parameter
group of that weight.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_edl import _core
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.nn.lookup import RowBlock, TableModule, lookup
from torch_edl.optim import optimizer_config
from torch_edl.tables.optimizers import FROZEN, Optimizers
from torch_edl.tables.table import EmbeddingTable, Rows

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_CHUNK_ROWS = 65_536

# By the weight that stands for the table in an optimizer's groups.
_tables: weakref.WeakValueDictionary[int, LocalRows] = weakref.WeakValueDictionary()


class LocalRows:
    """The rows of one table, in a hash table of this process."""

    def __init__(self, module: TableModule) -> None:
        self._module = weakref.ref(module)
        self._table: EmbeddingTable | None = None
        self._optimizers: Optimizers | None = None
        self.loaded = False
        """Rows came from a ``state_dict``."""
        # The rows that got gradients since the last step.
        self._pending: list[tuple[Ids, RowBlock]] = []
        _tables[id(module.weight)] = self

    def lookup(self, module: TableModule, ids: torch.Tensor) -> torch.Tensor:
        """See :class:`~torch_edl.nn.lookup.RowStore`."""
        unique, _, inverse = _core.unique_partition(ids.reshape(-1).cpu().numpy(), 1)
        values = np.empty((len(unique), module.embedding_dim), np.float32)
        self.table.core.pull_into(unique, values, read_only=not module.training)
        if module.weight.grad is None:
            self._pending.clear()  # zero_grad() was called, or this is the first pass
        block = RowBlock(values, lambda filled: self._pending.append((unique, filled)))
        return lookup(module.weight, block, inverse).view(*ids.shape, module.embedding_dim)

    def step(self, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Updates the rows that got gradients since the last step."""
        done = [(ids, block.grads) for ids, block in self._pending if block.grads is not None]
        self._pending = []
        if not done:
            return
        self.use_kernel(optimizer, group)
        assert self._optimizers is not None
        ids = np.concatenate([i for i, _ in done])
        gradients = np.concatenate([g for _, g in done])
        self.table.apply(ids, gradients, [float(g["lr"]) for g in optimizer.param_groups])

    def rows(self) -> tuple[Ids, Floats]:
        """All rows that exist: ids (n,) in increasing order and vectors (n, dim)."""
        found = self._all()
        order = np.argsort(found.ids)
        return found.ids[order], found.vectors[order]

    def weight(self) -> Floats:
        """The whole table (num_embeddings, dim), rows that do not exist as they would start."""
        module = self._module()
        assert module is not None
        assert module.num_embeddings is not None
        whole = np.empty((module.num_embeddings, module.embedding_dim), np.float32)
        self.table.core.pull_into(np.arange(module.num_embeddings), whole, read_only=True)
        return whole

    def replace(self, ids: Ids, vectors: Floats) -> None:
        """Replaces all rows by these, with new optimizer slots."""
        old, none = self.table, np.zeros(len(ids), np.int64)
        optimizers = self._optimizers or Optimizers("sgd", ())
        self._table = EmbeddingTable(old.info, old.seed, optimizers, old.declared)
        self._pending = []
        slots = np.empty((len(ids), 0, old.dim), np.float32)
        self._table.load(Rows(ids, vectors, slots, none, none), [])

    def restore(self, source: CheckpointReader) -> None:
        """Takes rows, slots and step from a checkpoint; :meth:`use_kernel` comes before, unless no
        optimizer has the table."""
        optimizers = self._optimizers or Optimizers("sgd", ())
        self._table = source.restore_table(self.table.declared, optimizers)

    def use_kernel(self, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Gives the rows the slots of an optimizer, unless they have those of another already."""
        module = self._module()
        if self._optimizers is not None or module is None:
            return
        self._optimizers = Optimizers.from_proto(optimizer_config(optimizer))
        old = self._all()
        slots = self.table.slot_names
        self._table = EmbeddingTable(module.info(group), self.table.seed, self._optimizers)
        self._table.load(old, slots)

    @property
    def table(self) -> EmbeddingTable:
        """The hash table, created on first use."""
        if self._table is None:
            module = self._module()
            assert module is not None
            # The kernel comes with the first step of an optimizer.
            none = Optimizers("sgd", ())
            seed = torch.initial_seed() & (2**62 - 1)
            self._table = EmbeddingTable(module.info(FROZEN), seed, none)
        return self._table

    def _all(self) -> Rows:
        table = self.table
        table.core.begin_snapshot()
        chunks = list(table.snapshot_rows(_CHUNK_ROWS))
        if not chunks:
            none = np.empty(0, np.int64)
            slots = np.empty((0, len(table.slot_names), table.dim), np.float32)
            return Rows(none, np.empty((0, table.dim), np.float32), slots, none, none)
        return Rows(
            ids=np.concatenate([c.ids for c in chunks]),
            vectors=np.concatenate([c.vectors for c in chunks]),
            slots=np.concatenate([c.slots for c in chunks]),
            last_used=np.concatenate([c.last_used for c in chunks]),
            count=np.concatenate([c.count for c in chunks]),
        )


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _tables:
        return  # every optimizer of the process comes here
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            rows = _tables.get(id(parameter)) if parameter.shape[0:1] == (0,) else None
            if rows is not None:
                rows.step(optimizer, index)


register_optimizer_step_post_hook(_after_step)

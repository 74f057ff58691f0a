"""Rows in this process: what an embedding uses when nothing connected it to servers.

A torch optimizer knows nothing of rows, so a hook after its ``step`` updates those of every table
whose ``weight`` it was given, with the kernel and the hyperparameters of that parameter's group.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_edl import _core
from torch_edl.kernels import read_optimizer
from torch_edl.nn.lookup import RowBlock, lookup

if TYPE_CHECKING:
    from torch_edl.nn.embedding import Table

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_CHUNK_ROWS = 65_536

# By the weight that stands for the table in an optimizer's groups.
_tables: weakref.WeakValueDictionary[int, LocalRows] = weakref.WeakValueDictionary()


class LocalRows:
    """The rows of one table, in a hash table of this process."""

    def __init__(self, module: Table) -> None:
        self._module = weakref.ref(module)
        self._table: _core.Table | None = None
        self._optimizer: _core.Optimizer | None = None
        # What got gradients since the last step.
        self._pending: list[tuple[Ids, RowBlock]] = []
        self._steps = 0
        _tables[id(module.weight)] = self

    def lookup(self, module: Table, ids: torch.Tensor) -> torch.Tensor:
        """See :class:`~torch_edl.nn.lookup.RowStore`."""
        flat = ids.reshape(-1).cpu().numpy()
        unique, _, inverse = _core.unique_partition(flat, 1)
        values = np.empty((len(unique), module.embedding_dim), np.float32)
        self._rows(module).pull_into(unique, values, read_only=not module.training)
        if module.weight.grad is None:
            self._pending.clear()  # zero_grad() was called, or this is the first pass
        block = RowBlock(values, lambda filled: self._pending.append((unique, filled)))
        return lookup(module.weight, block, inverse).view(*ids.shape, module.embedding_dim)

    def step(self, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Updates the rows that got gradients since the last step."""
        module = self._module()
        done = [(ids, block.grads) for ids, block in self._pending if block.grads is not None]
        self._pending = []
        if module is None or not done:
            return
        ids = np.concatenate([i for i, _ in done])
        gradients = np.concatenate([g for _, g in done])
        self._use_kernel(module, optimizer, group)
        self._steps += 1
        lr = float(optimizer.param_groups[group]["lr"])
        self._rows(module).push(ids, gradients, lr, self._steps)

    def rows(self) -> tuple[Ids, Floats]:
        """All rows that exist: ids (n,) in increasing order and vectors (n, dim)."""
        module = self._module()
        assert module is not None
        chunks = _chunks(self._rows(module))
        ids = np.concatenate([c[0] for c in chunks] or [np.empty(0, np.int64)])
        vectors = np.concatenate(
            [c[1] for c in chunks] or [np.empty((0, module.embedding_dim), np.float32)]
        )
        order = np.argsort(ids)
        return ids[order], vectors[order]

    def load(self, ids: Ids, vectors: Floats) -> None:
        """Sets rows."""
        module = self._module()
        assert module is not None
        self._rows(module).load(np.ascontiguousarray(ids), np.ascontiguousarray(vectors))

    @property
    def table(self) -> _core.Table:
        """The hash table, for checkpoints."""
        module = self._module()
        assert module is not None
        return self._rows(module)

    def _rows(self, module: Table) -> _core.Table:
        if self._table is None:
            self._table = _core.Table(
                module.table,
                module.embedding_dim,
                module.initializer.kind,
                dict(module.initializer.args),
                torch.initial_seed() & (2**62 - 1),
                self._optimizer,
                num_embeddings=module.num_embeddings or 0,
                min_count=module.min_count,
                max_age=module.max_age or 0,
            )
        return self._table

    def _use_kernel(self, module: Table, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Gives the rows the slots of the optimizer, the first time it steps."""
        if self._optimizer is not None:
            return
        config = read_optimizer(optimizer)
        old = self._rows(module)
        self._optimizer = _core.Optimizer(config.kind, dict(config.groups[group].hyper))
        self._table = None
        new = self._rows(module)
        for ids, vectors, _, last_used, count in _chunks(old):
            new.load(ids, vectors, None, last_used, count)


def _chunks(table: _core.Table) -> list[tuple[Ids, Floats, Floats, Ids, Ids]]:
    table.begin_snapshot()
    try:
        chunks = []
        while (chunk := table.next_chunk(_CHUNK_ROWS)) is not None:
            chunks.append(chunk)
        return chunks
    finally:
        table.end_snapshot()


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            rows = _tables.get(id(parameter)) if parameter.shape[0:1] == (0,) else None
            if rows is not None:
                rows.step(optimizer, index)


register_optimizer_step_post_hook(_after_step)

"""Rows of tables for the lookups of a Keras model: on servers, found ahead of time, or in this
process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.engine.servers.served import PullRows
from torch_edl.ps_client.partition import PartitionedIds, TableIds
from torch_edl.tables.optimizers import FROZEN, Optimizers
from torch_edl.tables.options import TableOptions
from torch_edl.tables.table import EmbeddingTable
from torch_edl.wire import pserver_pb2 as pb

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_UNTRAINED = Optimizers("sgd", ())


class TableLayer(Protocol):
    """A layer with a table, as a store of rows sees it."""

    table: str
    options: TableOptions

    @property
    def dim(self) -> int: ...
    def info(self, group: int) -> pb.EmbeddingTableInfo: ...


class RowBlock:
    """Some rows of a table: ``values`` (u, dim), and ``grads`` of the same shape, summed over all
    lookups that went through the block (None until the first)."""

    __slots__ = ("grads", "values")

    def __init__(self, values: Floats) -> None:
        self.values = values
        self.grads: Floats | None = None

    def gather(self, inverse: Ids) -> Floats:
        """Rows ``inverse`` (n,) as (n, dim)."""
        out = np.empty((len(inverse), self.values.shape[1]), np.float32)
        _core.gather(self.values, inverse, out)
        return out

    def add(self, inverse: Ids, gradient: Floats) -> None:
        """Adds the gradient (n, dim) of a lookup of the rows ``inverse`` (n,)."""
        gradient = np.ascontiguousarray(gradient, np.float32)
        if self.grads is None:
            self.grads = np.empty_like(self.values)
            _core.scatter_sum(gradient, inverse, self.grads)
        else:
            _core.scatter_add(gradient, inverse, self.grads)


class RowStore(Protocol):
    """Where a layer gets its rows from."""

    training: bool
    """Lookups make rows of ids that have none."""

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids] | None:
        """A block of rows, and the places in it of the ids (n,). None: the layer is only asked
        which ids it looks up."""
        ...


@dataclass
class Plan:
    """See :class:`~torch_edl.engine.servers.served.Plan`."""

    calls: list[list[tuple[Any, Ids]]]
    """The lookups of each minibatch, in the order of the model: layer and ids."""
    tables: list[TableIds] = field(default_factory=list)
    _blocks: list[tuple[TableIds, RowBlock]] = field(default_factory=list)
    _where: dict[tuple[int, int], tuple[int, slice]] = field(default_factory=dict)

    @classmethod
    def of(cls, calls: list[list[tuple[Any, Ids]]], servers: int) -> Plan:
        """The rows of all lookups, those of a table in one list without duplicates."""
        plan = cls(calls)
        by_table: dict[str, list[tuple[int, int]]] = {}
        for b, lookups in enumerate(calls):
            for c, (layer, _) in enumerate(lookups):
                by_table.setdefault(layer.table, []).append((b, c))
        shared: dict[tuple[bytes, ...], PartitionedIds] = {}
        for name, entries in by_table.items():
            ids = [calls[b][c][1] for b, c in entries]
            key = tuple(each.tobytes() for each in ids)
            if key not in shared:  # tables that are asked for the same ids send them once
                shared[key] = PartitionedIds.of(np.concatenate(ids), servers)
            start = 0
            for (b, c), each in zip(entries, ids, strict=True):
                plan._where[b, c] = len(plan.tables), slice(start, start + len(each))
                start += len(each)
            b, c = entries[0]
            plan.tables.append(TableIds(name, calls[b][c][0].dim, shared[key]))
        return plan

    def take(self, rows: Sequence[Floats]) -> None:
        self._blocks = [(t, RowBlock(v)) for t, v in zip(self.tables, rows, strict=True)]

    def find(self, batch: int, call: int) -> tuple[RowBlock, Ids]:
        """Rows and the places in them of one lookup."""
        number, span = self._where[batch, call]
        table, block = self._blocks[number]
        return block, table.ids.inverse[span]

    def add(self, table: TableIds, values: Floats) -> RowBlock:
        """Rows that the planning run did not see."""
        block = RowBlock(values)
        self._blocks.append((table, block))
        return block

    def gradients(self, servers: int) -> list[tuple[TableIds, Floats]]:
        made = []
        for name in dict.fromkeys(table.name for table, _ in self._blocks):
            used = [(t, b.grads) for t, b in self._blocks if t.name == name and b.grads is not None]
            if len(used) > 1:
                ids = PartitionedIds.of(np.concatenate([t.ids.unique for t, _ in used]), servers)
                whole = RowBlock(np.empty((len(ids.unique), used[0][0].dim), np.float32))
                whole.add(ids.inverse, np.concatenate([gradient for _, gradient in used]))
                assert whole.grads is not None
                used = [(TableIds(name, used[0][0].dim, ids), whole.grads)]
            made += used
        return made


class LastLookup(BaseException):
    """A planning run has seen every lookup; nothing after it matters. Not an Exception, so that
    neither Keras nor the user's code handles it."""


class ServerRows:
    """The :class:`RowStore` of all tables of a model whose rows are on servers."""

    def __init__(self) -> None:
        self.training = True
        self._planning: list[tuple[Any, Ids]] | None = None
        self._lookups = 0  # of a forward pass; 0: not known yet
        self._plan = Plan([[]])
        self._batch = self._call = 0
        self._pull: PullRows | None = None
        self.servers = 1

    def connect(self, servers: int, pull: PullRows) -> None:
        """Meets the servers: ``pull`` gets the rows of ids that no plan had."""
        self.servers, self._pull = servers, pull

    def plan(self, forward: Callable[[Any], Any], features: Sequence[Any]) -> Plan:
        """Finds which rows minibatches need: runs the model up to its last lookup, eagerly."""
        return Plan.of([self._calls(forward, each) for each in features], self.servers)

    def use(self, plan: Plan | None, number: int) -> None:
        """The next forward pass is minibatch ``number`` of ``plan``; None: of none."""
        self._plan, self._batch = (Plan([[]]), 0) if plan is None else (plan, number)
        self._call = 0

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids] | None:
        _check_range(layer, ids)
        if self._planning is not None:
            self._planning.append((layer, ids.copy()))
            if len(self._planning) == self._lookups:
                raise LastLookup
            return None
        calls, position = self._plan.calls[self._batch], self._call
        self._call += 1
        if position < len(calls):
            known, values = calls[position]
            if known is layer and np.array_equal(values, ids):
                return self._plan.find(self._batch, position)
        assert self._pull is not None, "a forward pass before the servers are known"
        wanted = PartitionedIds.of(ids, self.servers)
        table = TableIds(layer.table, layer.dim, wanted)
        (rows,) = self._pull([table])
        return self._plan.add(table, rows), wanted.inverse

    def _calls(self, forward: Callable[[Any], Any], features: Any) -> list[tuple[Any, Ids]]:
        self._planning = []
        try:
            forward(features)
        except LastLookup:
            pass
        finally:
            calls, self._planning = self._planning, None
        self._lookups = self._lookups or len(calls)
        return calls


class LocalRows:
    """The :class:`RowStore` of one table whose rows are in this process.

    Args:
        kernel: of the optimizer; None: rows are looked up, and not trained.
        seed: an initial row is a function of seed, table and id.
    """

    def __init__(self, layer: TableLayer, kernel: pb.OptimizerConfig | None, seed: int) -> None:
        self.training = True
        self._layer = layer
        self._optimizers = _UNTRAINED if kernel is None else Optimizers.from_proto(kernel)
        group = FROZEN if kernel is None else 0
        self.table = EmbeddingTable(layer.info(group), seed, self._optimizers)
        self._used: list[tuple[Ids, RowBlock]] = []

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids]:
        _check_range(layer, ids)
        unique, _, inverse = _core.unique_partition(ids, 1)
        values = np.empty((len(unique), self._layer.dim), np.float32)
        self.table.core.pull_into(unique, values, read_only=not self.training)
        block = RowBlock(values)
        if self.training:
            self._used.append((unique, block))
        return block, inverse

    def step(self, rates: Sequence[float]) -> None:
        """Updates the rows that got gradients since the last step."""
        done = [(ids, block.grads) for ids, block in self._used if block.grads is not None]
        self._used = []
        if done:
            ids = np.concatenate([i for i, _ in done])
            self.table.apply(ids, np.concatenate([g for _, g in done]), rates)
            self.table.evict()

    def forget(self) -> None:
        """Drops the gradients since the last step."""
        self._used = []

    def restore(self, source: CheckpointReader) -> None:
        """Takes rows, slots and step from a checkpoint."""
        self.table = source.restore_table(self.table.declared, self._optimizers)


def _check_range(layer: TableLayer, ids: Ids) -> None:
    if layer.options.bound is not None and len(ids):
        low, high = int(ids.min()), int(ids.max())
        layer.options.check_range(layer.table, low, high, argument="input_dim")

"""Rows of tables for the lookups of a Keras model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.engine.servers.plan import Ids
from torch_edl.tables.optimizers import FROZEN, Optimizers
from torch_edl.tables.options import TableOptions
from torch_edl.tables.row_block import RowBlock, look_up, update
from torch_edl.tables.table import EmbeddingTable
from torch_edl.wire import pserver_pb2 as pb

_UNTRAINED = Optimizers("sgd", ())


class RowLayer(Protocol):
    """The part of a layer with a table that a store of rows needs."""

    table: str
    options: TableOptions

    @property
    def dim(self) -> int: ...
    def info(self, group: int) -> pb.EmbeddingTableInfo: ...


class RowStore(Protocol):
    """The source of rows for the lookups of a layer."""

    training: bool
    """True if lookups create rows for new ids."""

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids] | None:
        """Return a block of rows, and the indices (n,) of the ids in the block.

        The result is None while a plan only records which ids are looked up.
        """
        ...


class LocalRows:
    """The :class:`RowStore` of one table whose rows are in this process.

    Args:
        kernel: kernel of the optimizer; None: rows are looked up but not trained.
        seed: seed of initial rows, which are a function of seed, table and id.
    """

    def __init__(self, layer: RowLayer, kernel: pb.OptimizerConfig | None, seed: int) -> None:
        self.training = True
        self._optimizers = _UNTRAINED if kernel is None else Optimizers.from_proto(kernel)
        group = FROZEN if kernel is None else 0
        self.table = EmbeddingTable(layer.info(group), seed, self._optimizers)
        self._used: list[tuple[Ids, RowBlock]] = []

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids]:
        check_range(layer, ids)
        unique, values, inverse = look_up(self.table, ids, training=self.training)
        block = RowBlock(values)
        if self.training:
            self._used.append((unique, block))
        return block, inverse

    def step(self, rates: Sequence[float]) -> None:
        """Update the rows that received gradients since the last step."""
        used, self._used = self._used, []
        update(self.table, used, rates)

    def forget(self) -> None:
        """Drop the gradients since the last step."""
        self._used = []

    def restore(self, source: CheckpointReader) -> None:
        """Restore rows, slots and step from a checkpoint."""
        self.table = source.restore_table(self.table.declared, self._optimizers)


def check_range(layer: RowLayer, ids: Ids) -> None:
    """Raise an error if an id is outside of the bound of a table."""
    if layer.options.bound is not None and len(ids):
        low, high = int(ids.min()), int(ids.max())
        layer.options.check_range(layer.table, low, high, argument="input_dim")

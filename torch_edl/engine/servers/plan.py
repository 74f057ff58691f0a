"""Plan of an update for every framework: the rows to pull, and the gradients of these rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from torch_edl.ps_client.partition import PartitionedIds, TableIds
from torch_edl.tables.table import RowBlock

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
PullRows = Callable[[Sequence[TableIds]], Sequence[Floats]]


class LastLookup(BaseException):
    """Ends a planning run of the model after its last lookup.

    Derived from BaseException, so that no handler in the user's code catches it.
    """


@dataclass
class RowLookup:
    """One lookup in a minibatch."""

    table: str
    dim: int
    values: Ids
    """Ids (n,), a copy; lookups of the same ids should share the array."""


C = TypeVar("C", bound=RowLookup)
B = TypeVar("B", bound=RowBlock)


@dataclass
class RowPlan(Generic[C, B]):
    """The rows that an update needs, and the rows that were pulled."""

    calls: list[list[C]]
    """Lookups of each minibatch, in the order in which the model makes them."""
    servers: int
    block: Callable[[Floats], B]
    tables: list[TableIds] = field(default_factory=list)
    """Rows to pull before the update."""
    _blocks: list[tuple[TableIds, B]] = field(default_factory=list)
    """Pulled rows: those of ``tables``, then those of lookups that were not planned."""
    _where: dict[tuple[int, int], tuple[int, slice]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_table: dict[str, list[tuple[int, int, C]]] = {}
        for b, calls in enumerate(self.calls):
            for c, call in enumerate(calls):
                by_table.setdefault(call.table, []).append((b, c, call))
        # Tables with the same ids share one list of unique ids, which is sent once.
        shared: dict[tuple[int, ...], PartitionedIds] = {}
        for name, entries in by_table.items():
            key = tuple(id(call.values) for _, _, call in entries)
            if key not in shared:
                flat = [call.values for _, _, call in entries]
                whole = flat[0] if len(flat) == 1 else np.concatenate(flat)
                shared[key] = PartitionedIds.of(whole, self.servers)
            start = 0
            for b, c, call in entries:
                span = slice(start, start + len(call.values))
                self._where[b, c] = (len(self.tables), span)
                start = span.stop
            self.tables.append(TableIds(name, entries[0][2].dim, shared[key]))

    def take(self, rows: Sequence[Floats]) -> None:
        """Store the rows that were pulled for ``tables``."""
        self._blocks = [(t, self.block(v)) for t, v in zip(self.tables, rows, strict=True)]

    def find(self, batch: int, call: int) -> tuple[B, Ids]:
        """Return the rows of one lookup, and the positions of its ids in the rows."""
        number, span = self._where[batch, call]
        table, block = self._blocks[number]
        return block, table.ids.inverse[span]

    def pull(self, call: RowLookup, pull: PullRows, *, keep: bool = True) -> tuple[B, Ids]:
        """Pull and return the rows of a lookup that was not planned.

        Args:
            keep: True if the rows will get gradients.
        """
        wanted = PartitionedIds.of(call.values, self.servers)
        table = TableIds(call.table, call.dim, wanted)
        (values,) = pull([table])
        block = self._add(table, values) if keep else self.block(values)
        return block, wanted.inverse

    def _add(self, table: TableIds, values: Floats) -> B:
        block = self.block(values)
        self._blocks.append((table, block))
        return block

    def gradient(self, name: str) -> tuple[TableIds, Floats] | None:
        """Return the unique ids of one table and their summed gradient (u, dim), which may be
        changed in place; None if there is no gradient."""
        found = [(t, b, b.grads) for t, b in self._blocks if t.name == name]
        used = [(t, b, gradient) for t, b, gradient in found if gradient is not None]
        if len(used) > 1:
            ids = PartitionedIds.of(
                np.concatenate([t.ids.unique for t, _, _ in used]), self.servers
            )
            table = TableIds(name, used[0][0].dim, ids)
            whole = self._add(table, np.empty((len(ids.unique), table.dim), np.float32))
            whole.add(ids.inverse, np.concatenate([gradient for _, _, gradient in used]))
            for _, block, _ in used:
                block.drop_gradient()
            assert whole.grads is not None
            return table, whole.grads
        return next(((t, gradient) for t, _, gradient in used), None)

    def drop_gradient(self, name: str) -> None:
        """Discard the gradient of one table."""
        for table, block in self._blocks:
            if table.name == name:
                block.drop_gradient()

    def gradients(self) -> list[tuple[TableIds, Floats]]:
        """Return :meth:`gradient` of each table that has one."""
        names = dict.fromkeys(table.name for table, _ in self._blocks)
        found = [self.gradient(name) for name in names]
        return [each for each in found if each is not None]

"""What an update looks up: the rows that are pulled for it, and the gradients that they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from torch_edl.nn.embedding import Table
from torch_edl.nn.rows import RowBlock
from torch_edl.ps_client.partition import PartitionedIds, TableIds

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class Call:
    """One lookup of a minibatch."""

    module: Table
    ids: torch.Tensor
    """Kept so that no other tensor takes its place in memory."""
    place: Place | None
    """At the lookup; the model may change its ids afterwards. None: whoever runs the model may
    change them unseen, so that the values alone tell."""
    values: Ids
    """(n,) a copy"""


@dataclass
class Plan:
    """The rows that an update needs, and those that it has."""

    calls: list[list[Call]]
    """Lookups of each minibatch, in the order of the model."""
    tables: list[TableIds] = field(default_factory=list)
    """What is to be pulled ahead of time."""
    _blocks: list[tuple[TableIds, RowBlock]] = field(default_factory=list)
    """What was pulled: for ``tables``, and then for ids that only the real run asked for."""
    _where: dict[tuple[int, int], tuple[int, slice]] = field(default_factory=dict)
    given: dict[int, list[tuple[torch.Tensor, int]]] = field(default_factory=dict)
    """Of minibatches whose lookups were found without the model: the features and their versions.
    """

    def take(self, rows: Sequence[Floats]) -> None:
        """Takes what was pulled for ``tables``."""
        self._blocks = [(t, RowBlock(v)) for t, v in zip(self.tables, rows, strict=True)]
        modules = {call.module.table: call.module for calls in self.calls for call in calls}
        for table, block in self._blocks:
            device = modules[table.name].weight.device
            if device.type != "cpu":
                block.on(device)  # on its way while the model begins

    def find(self, batch: int, call: int) -> tuple[RowBlock, Ids]:
        """Rows and the positions in them for one lookup."""
        number, span = self._where[batch, call]
        table, block = self._blocks[number]
        return block, table.ids.inverse[span]

    def add(self, table: TableIds, values: Floats) -> RowBlock:
        """Rows (u, dim) that the planning run did not see."""
        block = RowBlock(values)
        self._blocks.append((table, block))
        return block

    def gradient(self, name: str, servers: int) -> tuple[TableIds, Floats] | None:
        """The ids of one table and their summed gradient (u, dim) so far, each id once; it may be
        changed in place. None: there is none."""
        found = [(t, b, b.grads) for t, b in self._blocks if t.name == name]
        used = [(t, b, gradient) for t, b, gradient in found if gradient is not None]
        if len(used) > 1:
            ids = PartitionedIds.of(np.concatenate([t.ids.unique for t, _, _ in used]), servers)
            table = TableIds(name, used[0][0].dim, ids)
            whole = self.add(table, np.empty((len(ids.unique), table.dim), np.float32))
            whole.add(ids.inverse, np.concatenate([gradient for _, _, gradient in used]))
            for _, block, _ in used:
                block.drop_gradient()
            assert whole.grads is not None
            return table, whole.grads
        return next(((t, gradient) for t, _, gradient in used), None)

    def drop_gradient(self, name: str) -> None:
        """Forgets the gradient of one table."""
        for table, block in self._blocks:
            if table.name == name:
                block.drop_gradient()

    def start_down(self) -> None:
        """Begins to copy gradients from other devices than the CPU."""
        for _, block in self._blocks:
            block.start_down()

    def gradients(self, servers: int) -> list[tuple[TableIds, Floats]]:
        """:meth:`gradient` of each table that has one."""
        names = dict.fromkeys(table.name for table, _ in self._blocks)
        found = [self.gradient(name, servers) for name in names]
        return [each for each in found if each is not None]

"""Rows of a table that one minibatch looks up, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.tables.table import EmbeddingTable

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class RowBlock:
    """Rows of a table and their gradients.

    Args:
        values: the rows (u, dim).
    """

    __slots__ = ("_grads", "values")

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._grads: Floats | None = None

    @property
    def grads(self) -> Floats | None:
        """Gradients (u, dim), summed over all lookups of the block; None before the first."""
        return self._grads

    def drop_gradient(self) -> None:
        """Discard the gradients."""
        self._grads = None

    def gather(self, inverse: Ids, out: Floats | None = None) -> Floats:
        """Return the rows at ``inverse`` (n,) as (n, dim), written to ``out`` if given."""
        if out is None:
            out = np.empty((len(inverse), self.values.shape[1]), np.float32)
        _core.gather(self.values, inverse, out)
        return out

    def add(self, inverse: Ids, gradient: Floats) -> None:
        """Add the gradient (n, dim), C-contiguous, of a lookup of the rows ``inverse`` (n,)."""
        if self._grads is None:
            self._grads = np.empty_like(self.values)
            _core.scatter_sum(gradient, inverse, self._grads)
        else:
            _core.scatter_add(gradient, inverse, self._grads)


def look_up(table: EmbeddingTable, ids: Ids, *, training: bool) -> tuple[Ids, Floats, Ids]:
    """Look up the rows of ids (n,) in a table of this process.

    Args:
        training: create the rows of unknown ids.

    Returns:
        The unique ids (u,), their rows (u, dim), and the index (n,) of each id in the unique ids.
    """
    unique, _, inverse = _core.unique_partition(ids, 1)
    values = np.empty((len(unique), table.dim), np.float32)
    table.core.pull_into(unique, values, read_only=not training)
    return unique, values, inverse


def update(
    table: EmbeddingTable, used: Sequence[tuple[Ids, RowBlock]], rates: Sequence[float]
) -> None:
    """Run one optimizer step, with eviction, on a table of this process.

    Args:
        used: blocks and the ids (u,) of their rows; blocks without a gradient are skipped.
        rates: the learning rate of each parameter group.
    """
    found = [(ids, block.grads) for ids, block in used]
    done = [(ids, gradient) for ids, gradient in found if gradient is not None]
    if done:
        ids, gradients = (np.concatenate(each) for each in zip(*done, strict=True))
        table.apply(ids, gradients, rates)
        table.evict()

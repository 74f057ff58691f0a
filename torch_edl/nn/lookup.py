"""The differentiable step from rows to the output of an embedding, and the interface between the
modules and the stores of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.function import once_differentiable

from torch_edl import _core
from torch_edl.wire import pserver_pb2 as pb

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class RowBlock:
    """Some rows of a table in memory: ``values`` (u, dim), and ``grads`` of the same shape, summed
    over all lookups that went through the block (None until the first).

    Args:
        on_gradient: called with the block at its first gradient.
    """

    __slots__ = ("_on_gradient", "grads", "values")

    def __init__(
        self, values: Floats, on_gradient: Callable[[RowBlock], None] | None = None
    ) -> None:
        self.values = values
        self.grads: Floats | None = None
        self._on_gradient = on_gradient

    def add(self, inverse: Ids, gradient: Floats) -> None:
        """Adds the gradient (n, dim) of a lookup of the rows ``inverse`` (n,)."""
        if self.grads is None:
            self.grads = np.empty_like(self.values)
            _core.scatter_sum(gradient, inverse, self.grads)
            if self._on_gradient is not None:
                self._on_gradient(self)
        else:
            _core.scatter_add(gradient, inverse, self.grads)


class TableModule(Protocol):
    """An embedding module, as a store of rows sees it."""

    num_embeddings: int | None
    embedding_dim: int
    training: bool
    weight: torch.nn.Parameter
    """An empty parameter (0, dim) that stands for the table."""

    def info(self, group: int) -> pb.EmbeddingTableInfo:
        """The description of the table; ``group`` is its parameter group."""
        ...


class RowStore(Protocol):
    """Where an embedding module gets its rows from."""

    def lookup(self, module: Any, ids: torch.Tensor) -> torch.Tensor:
        """Rows (*ids.shape, dim) of ``module``'s table, differentiable into the table."""
        ...


def lookup(weight: torch.Tensor, block: RowBlock, inverse: Ids) -> torch.Tensor:
    """Rows ``inverse`` (n,) of a block as a tensor (n, dim).

    Args:
        weight: the module's empty parameter; it ties the block to the autograd graph.
    """
    out: torch.Tensor = _Lookup.apply(weight, block, inverse)  # type: ignore[no-untyped-call]
    return out


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, block: RowBlock, inverse: Ids) -> torch.Tensor:
        out = torch.empty(len(inverse), block.values.shape[1])
        _core.gather(block.values, inverse, out.numpy())
        ctx.block, ctx.inverse, ctx.weight_like = block, inverse, weight
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.block.add(ctx.inverse, gradient.contiguous().numpy())
        return torch.empty_like(ctx.weight_like), None, None

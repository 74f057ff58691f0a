"""Gradients of rows where a script looks for gradients: at the parameters of its model.

What clips gradients or scales them goes through ``parameter.grad``. The parameter of a table is
empty, and its gradient is that of the rows in use, summed by id; it may be changed in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_edl.engine.servers.rows import ServerRows

_grad: Any = torch.Tensor.grad


class TableParameter(nn.Parameter):
    """The empty parameter of a table on servers."""

    table: str
    rows: ServerRows

    @property
    def grad(self) -> torch.Tensor | None:
        """Of the rows that were looked up, (n, dim); None once it was taken."""
        rows = self.__dict__.get("rows")
        if rows is None:  # a copy
            own: torch.Tensor | None = _grad.__get__(self)
            return own
        gradient = rows.gradient(self.table)
        return None if gradient is None else torch.from_numpy(gradient)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _grad.__set__(self, None)
        rows = self.__dict__.get("rows")
        if value is None and rows is not None:
            rows.drop_gradient(self.table)


def bind_gradients(rows: ServerRows) -> None:
    """Lets the parameters of all tables show the gradients of their rows.

    Modules that share a table have it once, at the first of them.
    """
    bound = set()
    for module in rows.tables:
        if module.table not in bound:
            bound.add(module.table)
            weight: Any = module.weight
            weight.__class__ = TableParameter
            weight.table, weight.rows = module.table, rows

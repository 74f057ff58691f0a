"""Rows of tables on servers, for the lookups of a Keras model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tf_compat.rows import check_range
from torch_edl.engine.servers.plan import Ids, LastLookup, PullRows, RowLookup, RowPlan
from torch_edl.tables.row_block import RowBlock


@dataclass
class KerasCall(RowLookup):
    """Implements :class:`~torch_edl.engine.servers.plan.RowLookup`."""

    layer: Any


KerasPlan = RowPlan[KerasCall, RowBlock]


class ServerRows:
    """The :class:`~tf_compat.rows.RowStore` of all tables of a model whose rows are on servers."""

    def __init__(self) -> None:
        self.training = True
        self._planning: list[KerasCall] | None = None
        self._noted: dict[bytes, Ids] = {}
        self._lookups = 0  # lookups per forward pass; 0: not known yet
        self._batch = self._call = 0
        self._pull: PullRows | None = None
        self._servers = 1
        self._plan = self._none()

    def connect(self, servers: int, pull: PullRows) -> None:
        """Set the number of servers, and the function that pulls rows that are in no plan."""
        self._servers, self._pull = servers, pull
        self.use(None, 0)

    def plan(self, forward: Callable[[Any], Any] | None, features: Sequence[Any]) -> KerasPlan:
        """Find the rows that minibatches need, by running the model eagerly up to its last
        lookup.

        Args:
            forward: runs the model; None: the model has no tables.
        """
        calls: list[list[KerasCall]] = [[] for _ in features]
        if forward is not None:
            calls = [self._calls(forward, each) for each in features]
        return RowPlan(calls, self._servers, RowBlock)

    def use(self, plan: KerasPlan | None, number: int) -> None:
        """Select minibatch ``number`` of ``plan`` for the next forward pass; None: no plan."""
        self._plan, self._batch = (self._none(), 0) if plan is None else (plan, number)
        self._call = 0

    def _none(self) -> KerasPlan:
        return RowPlan([[]], self._servers, RowBlock)

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids] | None:
        check_range(layer, ids)
        if self._planning is not None:
            # Lookups of the same ids share one array.
            values = self._noted.setdefault(ids.tobytes(), ids.copy())
            self._planning.append(KerasCall(layer.table, layer.dim, values, layer))
            if len(self._planning) == self._lookups:
                raise LastLookup
            return None
        calls, position = self._plan.calls[self._batch], self._call
        self._call += 1
        if position < len(calls):
            call = calls[position]
            if call.layer is layer and np.array_equal(call.values, ids):
                return self._plan.find(self._batch, position)
        assert self._pull is not None, "a forward pass before the servers are known"
        return self._plan.pull(RowLookup(layer.table, layer.dim, ids), self._pull)

    def _calls(self, forward: Callable[[Any], Any], features: Any) -> list[KerasCall]:
        self._planning, self._noted = [], {}
        try:
            forward(features)
        except LastLookup:
            pass
        finally:
            calls, self._planning = self._planning, None
        self._lookups = self._lookups or len(calls)
        return calls

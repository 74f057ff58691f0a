"""Rows of embedding tables that live on servers, for the minibatches of one window.

The ids of a window are found before it is trained: the model runs on it only as far as its last
embedding, with nothing looked up (:meth:`ServerRows.plan`). So all rows of all tables are pulled
in one call, ahead of time. An id that only the real run asks for is pulled then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl import _core
from torch_edl.data.batch import Batch
from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Table
from torch_edl.nn.lookup import RowBlock, lookup
from torch_edl.nn.model_tables import bind_tables
from torch_edl.ps_client.partition import PartitionedIds, TableIds

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
_Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]
Pull = Callable[[Sequence[TableIds]], Sequence[Floats]]


class _LastLookup(BaseException):
    """The planning run has seen every embedding; nothing after it matters.

    Not an Exception, so that no handler in the user's forward takes it.
    """


@dataclass
class _Call:
    """One lookup of a minibatch."""

    module: Table
    ids: torch.Tensor
    """Kept so that no other tensor takes its place in memory."""
    place: _Place
    """At the lookup; the model may change its ids afterwards."""
    values: Ids
    """(n,) a copy"""


@dataclass
class Plan:
    """The rows that a window needs."""

    calls: list[list[_Call]]
    """Lookups of each minibatch, in the order of the model."""
    tables: list[TableIds] = field(default_factory=list)
    blocks: list[RowBlock] = field(default_factory=list)
    """One for each of ``tables``, once they were pulled."""
    _where: dict[tuple[int, int], tuple[int, slice]] = field(default_factory=dict)

    def take(self, rows: Sequence[Floats]) -> None:
        """Takes what was pulled for ``tables``."""
        self.blocks = [RowBlock(values) for values in rows]

    def find(self, batch: int, call: int) -> tuple[RowBlock, Ids]:
        """Rows and the positions in them for one lookup."""
        table, span = self._where[batch, call]
        return self.blocks[table], self.tables[table].ids.inverse[span]

    def add(self, module: Table, ids: PartitionedIds, values: Floats) -> RowBlock:
        """Rows that the planning run did not see."""
        block = RowBlock(values)
        self.tables.append(TableIds(module.table, module.embedding_dim, ids))
        self.blocks.append(block)
        return block

    def gradient(self, name: str, servers: int) -> Floats | None:
        """The summed gradient (n, dim) of one table so far, each id once; to be changed in place.
        None: there is none."""
        used = [
            (table, block)
            for table, block in zip(self.tables, self.blocks, strict=True)
            if table.name == name and block.grads is not None
        ]
        if len(used) > 1:
            table, sum_ = _merge([(t, b.grads) for t, b in used if b.grads is not None], servers)
            for _, block in used:
                block.grads = None
            whole = RowBlock(sum_)
            whole.grads = sum_
            self.tables.append(table)
            self.blocks.append(whole)
            return sum_
        return used[0][1].grads if used else None

    def drop_gradient(self, name: str) -> None:
        """Forgets the gradient of one table."""
        for table, block in zip(self.tables, self.blocks, strict=True):
            if table.name == name:
                block.grads = None

    def gradients(self, servers: int) -> list[tuple[TableIds, Floats]]:
        """The summed gradient of each table that was used, each id once."""
        used: dict[str, list[tuple[TableIds, Floats]]] = {}
        for table, block in zip(self.tables, self.blocks, strict=True):
            if block.grads is not None:
                used.setdefault(table.name, []).append((table, block.grads))
        return [g[0] if len(g) == 1 else _merge(g, servers) for g in used.values()]


def _merge(parts: list[tuple[TableIds, Floats]], servers: int) -> tuple[TableIds, Floats]:
    first = parts[0][0]
    ids = PartitionedIds.of(np.concatenate([t.ids.unique for t, _ in parts]), servers)
    out = np.empty((len(ids.unique), first.dim), np.float32)
    _core.scatter_sum(np.concatenate([g for _, g in parts]), ids.inverse, out)
    return TableIds(first.name, first.dim, ids), out


class ServerRows:
    """The :class:`~torch_edl.nn.lookup.RowStore` of all tables of a model.

    Args:
        forward: runs the model on the features of a minibatch.
    """

    def __init__(self, model: nn.Module, forward: Callable[[Any], Any]) -> None:
        self._model = model
        self._forward = forward
        self.tables = bind_tables(model)
        for module in self.tables:
            if module.local_rows is not None and module.local_rows.loaded:
                raise UsageError(
                    f"table {module.table}: load_state_dict() gave it rows in this process, which "
                    "do not come to the servers; begin with a trained model by torch-edl run "
                    "--load DIR"
                )
            module.store = self
        # In a planning run nothing may count batches or draw random numbers.
        self._quiet = any(
            isinstance(m, nn.modules.dropout._DropoutNd) or m._buffers for m in model.modules()
        )
        # Whether the model changes what it is given in place; None: not known yet.
        self._alters: bool | None = None if self.tables else False
        self._planning: list[_Call] | None = None
        self._noted: dict[_Place, Ids] = {}
        self._lookups = 0  # per forward pass; 0: not known yet
        self._plan: Plan | None = None
        self._batch = self._call = 0
        self._pull: Pull | None = None
        self._servers = 1
        self.gradients_taken = False
        """They are not to be seen at the parameters any more."""

    def connect(self, servers: int, pull: Pull) -> None:
        """Meets the servers: ``pull`` gets the rows of ids that no plan had."""
        self._servers, self._pull = servers, pull

    def plan(self, batches: Sequence[Batch]) -> Plan:
        """Finds which rows some minibatches need."""
        plan = Plan([self._dry_run(b) for b in batches] if self.tables else [])
        by_table: dict[str, list[tuple[int, int, _Call]]] = {}
        for b, calls in enumerate(plan.calls):
            for c, call in enumerate(calls):
                by_table.setdefault(call.module.table, []).append((b, c, call))
        # Tables asked for the same ids share one list without duplicates.
        shared: dict[tuple[int, ...], PartitionedIds] = {}
        for name, entries in by_table.items():
            key = tuple(id(call.values) for _, _, call in entries)
            if key not in shared:
                flat = [call.values for _, _, call in entries]
                whole = flat[0] if len(flat) == 1 else np.concatenate(flat)
                shared[key] = PartitionedIds.of(whole, self._servers)
            dim = entries[0][2].module.embedding_dim
            start = 0
            for b, c, call in entries:
                span = slice(start, start + len(call.values))
                plan._where[b, c] = (len(plan.tables), span)
                start = span.stop
            plan.tables.append(TableIds(name, dim, shared[key]))
        return plan

    def given(self, features: Any) -> Any:
        """What the model may be run on: a copy where it would change the features in place, which
        another run of it is to see as they were."""
        return features if self._alters is False else _copied(features)

    def use(self, plan: Plan, batch: int) -> None:
        """The next forward pass is minibatch ``batch`` of ``plan``."""
        self._plan, self._batch, self._call = plan, batch, 0
        self.gradients_taken = False

    def gradient(self, table: str) -> Floats | None:
        """See :meth:`Plan.gradient`; of what is in use, until it was taken."""
        if self._plan is None or self.gradients_taken:
            return None
        return self._plan.gradient(table, self._servers)

    def drop_gradient(self, table: str) -> None:
        """Forgets the gradient of a table, unless it was taken."""
        if self._plan is not None and not self.gradients_taken:
            self._plan.drop_gradient(table)

    def lookup(self, module: Table, ids: torch.Tensor) -> torch.Tensor:
        """See :class:`~torch_edl.nn.lookup.RowStore`."""
        if self._planning is not None:
            return self._note(module, ids)
        assert self._plan is not None, "a forward pass without a plan"
        calls, position = self._plan.calls[self._batch], self._call
        self._call += 1
        if position < len(calls) and _same(calls[position], module, ids):
            block, inverse = self._plan.find(self._batch, position)
        else:
            block, inverse = self._unplanned(module, ids)
        return lookup(module.weight, block, inverse).view(*ids.shape, module.embedding_dim)

    def _dry_run(self, batch: Batch) -> list[_Call]:
        features = self.given(batch.features)
        versions = [_version(t) for t in _tensors(features)]
        self._planning, self._noted = [], {}
        was_training = self._model.training
        if self._quiet:
            self._model.eval()
        try:
            with torch.no_grad():
                self._forward(features)
        except _LastLookup:
            pass
        finally:
            calls, self._planning = self._planning, None
            if self._quiet:
                self._model.train(was_training)
        self._lookups = self._lookups or len(calls)
        if self._alters is not True:
            altered = versions != [_version(t) for t in _tensors(features)]
            if altered and self._alters is False:
                raise UsageError(
                    "the model changes a minibatch in place, and did not change the first one: "
                    "its ids cannot be found ahead of time; clone() in forward what it changes"
                )
            self._alters = altered
        return calls

    def _note(self, module: Table, ids: torch.Tensor) -> torch.Tensor:
        assert self._planning is not None
        _check_range(module, ids)
        place = _place(ids)
        values = self._noted.get(place)
        if values is None:
            values = self._noted[place] = _flat(ids).copy()
        self._planning.append(_Call(module, ids, place, values))
        if len(self._planning) == self._lookups:
            raise _LastLookup
        return torch.zeros(()).expand(*ids.shape, module.embedding_dim)

    def _unplanned(self, module: Table, ids: torch.Tensor) -> tuple[RowBlock, Ids]:
        assert self._plan is not None
        assert self._pull is not None
        _check_range(module, ids)
        wanted = PartitionedIds.of(_flat(ids), self._servers)
        (values,) = self._pull([TableIds(module.table, module.embedding_dim, wanted)])
        if not torch.is_grad_enabled():
            return RowBlock(values), wanted.inverse  # nothing will come back to it
        return self._plan.add(module, wanted, values), wanted.inverse


def _flat(ids: torch.Tensor) -> Ids:
    # A column of a batch is no contiguous array.
    return np.ascontiguousarray(ids.reshape(-1).cpu().numpy())


def _same(call: _Call, module: Table, ids: torch.Tensor) -> bool:
    if call.module is not module or call.ids.shape != ids.shape:
        return False
    return call.place == _place(ids) or np.array_equal(call.values, _flat(ids))


def _place(ids: torch.Tensor) -> _Place:
    """Where a tensor's values are, and how often they were changed there: two of one place have
    the same values, a view may not."""
    return ids.data_ptr(), _version(ids), tuple(ids.shape), ids.stride(), ids.dtype


def _version(tensor: torch.Tensor) -> int:
    """How often it was changed in place; tensors of inference mode are not counted."""
    return 0 if tensor.is_inference() else tensor._version


def _tensors(features: Any) -> Iterator[torch.Tensor]:
    """The tensors of a minibatch."""
    if isinstance(features, torch.Tensor):
        yield features
    elif isinstance(features, Mapping):
        for value in features.values():
            yield from _tensors(value)
    elif isinstance(features, tuple | list):
        for value in features:
            yield from _tensors(value)


def _copied(features: Any) -> Any:
    """The same minibatch with tensors of its own."""
    if isinstance(features, torch.Tensor):
        return features.clone()
    if isinstance(features, MutableMapping):
        own = copy.copy(features)
        for key, value in features.items():
            own[key] = _copied(value)
        return own
    if isinstance(features, tuple):
        made = [_copied(value) for value in features]
        return type(features)(*made) if hasattr(features, "_fields") else tuple(made)
    return [_copied(value) for value in features] if isinstance(features, list) else features


def _check_range(module: Table, ids: torch.Tensor) -> None:
    if module.num_embeddings is None or not ids.numel():
        return
    low, high = ids.aminmax()
    if int(low) < 0 or int(high) >= module.num_embeddings:
        bad = int(low) if int(low) < 0 else int(high)
        raise UsageError(
            f"embedding {module.table}: id {bad} is outside [0, {module.num_embeddings}); "
            "make num_embeddings larger, or None for no bound"
        )

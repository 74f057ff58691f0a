"""Rows of embedding tables that live on servers, for the minibatches of one update.

The ids of an update are found before the update is trained: the model runs on it only as far as
its last embedding, with nothing looked up (:meth:`ServerRows.plan`). So all rows of all tables are
pulled in one call, ahead of time. An id that only the real run asks for is pulled then.

What clips gradients or scales them goes through ``parameter.grad``. The parameter of a table is
empty; in a script its gradient is that of the rows in use, summed by id, and may be changed in
place (:class:`TableParameter`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl.data.batch import Batch, Update
from torch_edl.engine.servers.features import copied, tensors, version
from torch_edl.engine.servers.plain_ids import PlainIds
from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Table
from torch_edl.nn.model_tables import bind_tables
from torch_edl.nn.rows import RowBlock, lookup
from torch_edl.ps_client.client import Pending, PullResult
from torch_edl.ps_client.partition import PartitionedIds, TableIds

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
_grad: Any = torch.Tensor.grad
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
    """The rows that an update needs, and those that it has."""

    calls: list[list[_Call]]
    """Lookups of each minibatch, in the order of the model."""
    tables: list[TableIds] = field(default_factory=list)
    """What is to be pulled ahead of time."""
    _blocks: list[tuple[TableIds, RowBlock]] = field(default_factory=list)
    """What was pulled: for ``tables``, and then for ids that only the real run asked for."""
    _where: dict[tuple[int, int], tuple[int, slice]] = field(default_factory=dict)
    not_run: dict[int, list[tuple[torch.Tensor, int]]] = field(default_factory=dict)
    """Of minibatches whose lookups were found without the model: the features and their versions.
    """

    def take(self, rows: Sequence[Floats]) -> None:
        """Takes what was pulled for ``tables``."""
        self._blocks = [(t, RowBlock(v)) for t, v in zip(self.tables, rows, strict=True)]

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
        used = [(t, b) for t, b in self._blocks if t.name == name and b.grads is not None]
        if len(used) > 1:
            ids = PartitionedIds.of(np.concatenate([t.ids.unique for t, _ in used]), servers)
            parts = [b.grads for _, b in used if b.grads is not None]
            table = TableIds(name, used[0][0].dim, ids)
            whole = self.add(table, np.empty((len(ids.unique), table.dim), np.float32))
            whole.add(ids.inverse, np.concatenate(parts))
            for _, block in used:
                block.grads = None
            used = [(table, whole)]
        return next(((t, b.grads) for t, b in used if b.grads is not None), None)

    def drop_gradient(self, name: str) -> None:
        """Forgets the gradient of one table."""
        for table, block in self._blocks:
            if table.name == name:
                block.grads = None

    def gradients(self, servers: int) -> list[tuple[TableIds, Floats]]:
        """:meth:`gradient` of each table that has one."""
        names = dict.fromkeys(table.name for table, _ in self._blocks)
        found = [self.gradient(name, servers) for name in names]
        return [each for each in found if each is not None]


@dataclass
class PlannedUpdate:
    """An update, the rows that its minibatches need, and the pull that is on its way."""

    update: Update
    plan: Plan
    pull: Pending[PullResult] | None = None
    versions: list[int] | None = None
    """Of the servers, as they were pulled; None: not yet."""
    steps: int = 0
    """Minibatches whose gradients were collected."""


class ServerRows:
    """The :class:`~torch_edl.nn.rows.RowStore` of all tables of a model.

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
        self._plain = PlainIds()
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
        plan = Plan([])
        if self.tables:
            plan.calls = [self._calls(plan, number, b) for number, b in enumerate(batches)]
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
        return features if self._alters is False else copied(features)

    def use(self, plan: Plan, batch: int) -> None:
        """The next forward pass is minibatch ``batch`` of ``plan``."""
        if self._plan is not None and self._is_surprised(self._plan):
            self._plain.give_up()
        self._plan, self._batch, self._call = plan, batch, 0
        self.gradients_taken = False

    def show_gradients(self) -> None:
        """Lets the parameters of all tables show the gradients of their rows.

        Modules that share a table have it once, at the first of them.
        """
        for table, module in {m.table: m for m in reversed(self.tables)}.items():
            weight: Any = module.weight
            weight.__class__ = TableParameter
            weight.table, weight.rows = table, self

    def gradient(self, table: str) -> Floats | None:
        """The gradient (u, dim) of the rows of a table that are in use, until it was taken."""
        if self._plan is None or self.gradients_taken:
            return None
        found = self._plan.gradient(table, self._servers)
        return None if found is None else found[1]

    def drop_gradient(self, table: str) -> None:
        """Forgets the gradient of a table, unless it was taken."""
        if self._plan is not None and not self.gradients_taken:
            self._plan.drop_gradient(table)

    def lookup(self, module: Table, ids: torch.Tensor) -> torch.Tensor:
        """See :class:`~torch_edl.nn.rows.RowStore`."""
        if self._planning is not None:
            return self._note(module, ids)
        assert self._plan is not None, "a forward pass without a plan"
        calls, position = self._plan.calls[self._batch], self._call
        self._call += 1
        if position < len(calls) and _same(calls[position], module, ids):
            block, inverse = self._plan.find(self._batch, position)
        else:
            self._plain.give_up()
            block, inverse = self._unplanned(module, ids)
        return lookup(module, block, inverse, ids.shape)

    def _is_surprised(self, plan: Plan) -> bool:
        """Whether the last minibatch asked for less than was planned, or changed its features where
        the model was not run to see that."""
        given = plan.not_run.get(self._batch, ())
        return 0 < self._call < len(plan.calls[self._batch]) or any(
            version(tensor) != before for tensor, before in given
        )

    def _calls(self, plan: Plan, number: int, batch: Batch) -> list[_Call]:
        """The lookups of a minibatch."""
        given = list(tensors(batch.features))
        # Where the model changes its features, what they hold at a lookup is known to it alone.
        plain = self._alters is False and self._plain.find(given, self._model.training)
        self._noted = {}
        if not plain:
            return self._dry_run(batch)
        plan.not_run[number] = [(t, version(t)) for t in given]
        return [self._call_of(*each) for each in plain]

    def _dry_run(self, batch: Batch) -> list[_Call]:
        unchanged = self._alters is False
        features = self.given(batch.features)
        given = list(tensors(features))
        versions = [version(t) for t in given]
        self._planning = []
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
            altered = versions != [version(t) for t in given]
            if altered and self._alters is False:
                raise UsageError(
                    "the model changes a minibatch in place, and did not change the first one: "
                    "its ids cannot be found ahead of time; clone() in forward what it changes"
                )
            self._alters = altered
        if unchanged:
            self._plain.learn(given, was_training, [(c.module, c.ids) for c in calls])
        return calls

    def _note(self, module: Table, ids: torch.Tensor) -> torch.Tensor:
        assert self._planning is not None
        self._planning.append(self._call_of(module, ids))
        if len(self._planning) == self._lookups:
            raise _LastLookup
        return torch.zeros(()).expand(*ids.shape, module.embedding_dim)

    def _call_of(self, module: Table, ids: torch.Tensor) -> _Call:
        _check_range(module, ids)
        place = _place(ids)
        values = self._noted.get(place)
        if values is None:
            values = self._noted[place] = _flat(ids).copy()
        return _Call(module, ids, place, values)

    def _unplanned(self, module: Table, ids: torch.Tensor) -> tuple[RowBlock, Ids]:
        assert self._plan is not None
        assert self._pull is not None
        _check_range(module, ids)
        wanted = PartitionedIds.of(_flat(ids), self._servers)
        table = TableIds(module.table, module.embedding_dim, wanted)
        (values,) = self._pull([table])
        if not torch.is_grad_enabled():
            return RowBlock(values), wanted.inverse  # nothing will come back to it
        return self._plan.add(table, values), wanted.inverse


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
    return ids.data_ptr(), version(ids), tuple(ids.shape), ids.stride(), ids.dtype


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

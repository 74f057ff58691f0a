"""Interface between the engine for parameter servers and a model, for every framework, and the rows
that an update pulls and pushes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from torch_edl.errors import EdlError, UserCodeError, describe_error
from torch_edl.interfaces import Update
from torch_edl.ps_client.client import Pending, PullResult
from torch_edl.ps_client.partition import (
    DenseGradient,
    DenseSegment,
    Floats,
    PartitionedIds,
    TableIds,
)
from torch_edl.tables.table import RowBlock
from torch_edl.wire import pserver_pb2 as pb

Array = npt.NDArray[Any]


class ServedModel(Protocol):
    """A model whose parameters are on servers, and the optimizer that the servers apply.

    Each framework has one. The engine imports no framework, and knows it by this interface.
    """

    model: Any
    kernel: pb.OptimizerConfig
    is_script: bool
    """True if a script calls the model. Rows are then predicted, and each update has one
    minibatch."""

    @property
    def rows(self) -> ServedRows[Any, Any]:
        """The rows of the model's tables."""
        ...

    def attach(
        self, before_step: Callable[[], None], on_gradient: Callable[[], None] | None
    ) -> None:
        """Register callbacks of the engine, without keeping the engine alive.

        Args:
            before_step: called before each step of the optimizer.
            on_gradient: called in each backward, as soon as there is a gradient; None for no call.
        """
        ...

    def initial(self) -> Sequence[pb.DenseParameter]:
        """Return the initial parameters and buffers, sorted by name."""
        ...

    def tables(self) -> Sequence[pb.EmbeddingTableInfo]:
        """Return the descriptions of the tables."""
        ...

    def connect(
        self,
        layout: Sequence[Sequence[DenseSegment]],
        exact: Mapping[str, Array],
        memory: Callable[[int, int], Floats],
    ) -> None:
        """Connect to servers.

        Args:
            layout: layout of the flat vector of each server.
            exact: buffers that keep their type, as stored on the servers.
            memory: ``memory(server, n)`` returns memory (n,) for the gradient of a server.
        """
        ...

    def load(self, values: Sequence[Floats | None]) -> None:
        """Load the dense parameters of each server; None if those loaded before are valid."""
        ...

    def forget(self, *, gradients: bool = True) -> None:
        """Discard the collected gradients, and clear those of all parameters if requested."""
        ...

    def collect(self, plan: Any, *, last: bool, lost: bool) -> None:
        """Add the complete gradients of a minibatch to those of the update.

        Args:
            plan: plan of the update.
            last: hide the gradients from the optimizer, because the servers apply them.
            lost: discard the gradients, because servers were lost.
        """
        ...

    def dense_gradients(self) -> list[DenseGradient]:
        """Return the collected gradient for each server, which does not change afterwards."""
        ...

    def exact_changes(self) -> Mapping[str, Array]:
        """Return the changed buffers that keep their type, by name."""
        ...

    def learning_rates(self, version: int) -> Sequence[float]:
        """Return the rate of each group for the update after ``version``; empty if unchanged."""
        ...

    def forbid_accumulation(self) -> None:
        """Make the next backward raise UsageError if it adds to the gradients of this minibatch,
        which no optimizer has applied."""
        ...


@dataclass
class PlannedUpdate:
    """An update with the rows that its minibatches need and its pull in flight."""

    update: Update
    plan: RowPlan[Any, Any]
    pull: Pending[PullResult] | None = None
    versions: list[int] | None = None
    """Version of each server's parameters in the pull; None before the pull has ended."""
    steps: int = 0
    """Number of minibatches whose gradients were collected."""


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


P = TypeVar("P", bound=RowPlan[Any, Any])


class ServedRows(ABC, Generic[C, P]):
    """The rows of all tables of a model, on servers.

    The ids of an update are found before it is trained, by a run of the model up to its last
    lookup, so that all rows are pulled in one call. Other rows are pulled at their lookup.

    Args:
        new_plan: makes a plan of the lookups of each minibatch and the number of servers.
    """

    def __init__(self, new_plan: Callable[[list[list[C]], int], P]) -> None:
        self._new_plan = new_plan
        self._pull: PullRows | None = None
        self._servers = 1
        self._planning: list[C] | None = None  # lookups of the current planning run
        self._lookups = 0  # lookups per forward pass; 0 if unknown yet
        self._plan: P | None = None
        self._batch = self._call = 0

    def connect(self, servers: int, pull: PullRows) -> None:
        """Connect to the servers; ``pull`` returns the rows of lookups that were not planned."""
        self._servers, self._pull = servers, pull
        self.use(None, 0)

    def plan(self, batches: Sequence[Any]) -> P:
        """Find the rows that minibatches need.

        Args:
            batches: features of the minibatches; for a script, the whole minibatches.

        Raises:
            UserCodeError: the model raised an exception.
        """
        try:
            return self._find(batches)
        except EdlError:
            raise
        except Exception as error:
            raise UserCodeError(f"the model raised {describe_error(error)}") from error

    def use(self, plan: P | None, number: int) -> None:
        """Select minibatch ``number`` of a plan for the next forward pass; None for no plan."""
        self._plan = self._new_plan([[]], self._servers) if plan is None else plan
        self._batch, self._call = number, 0

    def given(self, features: Any) -> Any:
        """Return the input of the model: a copy if the model changes its features in place."""
        return features

    @property
    @abstractmethod
    def training(self) -> bool:
        """True if the model is in training mode, in which lookups create rows."""

    @abstractmethod
    def _find(self, batches: Sequence[Any]) -> P:
        """See :meth:`plan`."""

    def _dry_run(self, forward: Callable[[Any], Any], features: Any) -> list[C]:
        """Return the lookups of the model for the features of a minibatch."""
        self._planning = []
        try:
            forward(features)
        except LastLookup:
            pass
        finally:
            calls, self._planning = self._planning, None
        self._lookups = self._lookups or len(calls)
        return calls

    def _note(self, planning: list[C], call: C) -> None:
        """Add a lookup to those of a planning run, which ends after the last lookup."""
        planning.append(call)
        if len(planning) == self._lookups:
            raise LastLookup

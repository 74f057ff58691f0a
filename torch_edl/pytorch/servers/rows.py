"""Rows of embedding tables on servers, for the minibatches of one update.

The ids of an update are found before the update is trained: the model is run up to its last
embedding, without looking up rows (:meth:`ServerRows.plan`). All rows of all tables are then pulled
in one call. An id that only the real run looks up is pulled at its lookup.

The model of a script cannot be run in advance. Its first minibatches show which ids it looks up
(:class:`IdPrediction`), and the rows of later minibatches are pulled by this prediction. A lookup
compares its ids with the prediction, and pulls other rows if they differ.

Functions that clip or scale gradients use ``parameter.grad``. The parameter of a table is empty; in
a script, its gradient is the gradient of the rows in use, summed by id. The gradient may be changed
in place, or replaced by a tensor of the same shape (``TableParameter`` of
:mod:`torch_edl.pytorch.torch_internals`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from torch_edl.data.trees import leaves, transform
from torch_edl.engine.servers.served import Ids, PullRows, RowLookup, RowPlan, ServedRows
from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Table
from torch_edl.nn.model_tables import tables_of
from torch_edl.nn.rows import DeviceBlock, lookup
from torch_edl.ps_client.partition import Floats
from torch_edl.pytorch.servers.id_prediction import IdPrediction, Lookup, shares_memory
from torch_edl.pytorch.torch_internals import DROPOUTS, change_count, show_row_gradients


def tensors(features: Any) -> list[torch.Tensor]:
    """Return the tensors of a minibatch."""
    return [leaf for _, leaf in leaves(features) if isinstance(leaf, torch.Tensor)]


def _cloned(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class TorchCall(RowLookup):
    """One lookup of a torch model; see :class:`RowLookup`."""

    module: Table
    ids: torch.Tensor
    """The ids. The reference prevents another tensor from getting the same memory."""
    place: Place | None
    """Memory position at the lookup, as the model may change its ids later. None for a script,
    which may change ids unnoticed, so that only the values can be compared."""


@dataclass
class TorchPlan(RowPlan[TorchCall, DeviceBlock]):
    """Plan of an update of a torch model; see :class:`RowPlan`."""

    given: dict[int, list[tuple[torch.Tensor, int]]] = field(default_factory=dict)
    """For each minibatch that was planned without a run of the model: the tensors of its features,
    each with its change count at that time. A higher count later means that the model or the script
    has changed the tensor in place."""
    devices: Mapping[str, torch.device] = field(default_factory=dict)
    """Devices by name of the table, for tables that are not on the CPU."""

    def take(self, rows: Sequence[Floats]) -> None:
        super().take(rows)
        if self.devices:
            for table, block in self._blocks:
                if table.name in self.devices:
                    # Starts the copy, which overlaps with the first layers.
                    block.on(self.devices[table.name])

    def start_down(self) -> None:
        """Start to copy gradients from other devices to the CPU."""
        for _, block in self._blocks:
            block.start_down()


class ServerRows(ServedRows[TorchCall, TorchPlan]):
    """The :class:`~torch_edl.nn.rows.RowStore` of all tables of a model.

    Args:
        forward: runs the model on the features of a minibatch; None for a script, which runs its
            model itself and whose features are the whole minibatch.
    """

    def __init__(self, model: nn.Module, forward: Callable[[Any], Any] | None) -> None:
        super().__init__(lambda calls, servers: TorchPlan(calls, servers, DeviceBlock))
        self._model = model
        self._forward = forward
        self.tables = tables_of(model)
        """Embedding tables of the model."""
        for module in self.tables:
            if module.local_rows is not None and module.local_rows.loaded:
                raise UsageError(
                    f"table {module.table}: load_state_dict() gave it rows in this process, which "
                    "do not come to the servers; begin with a trained model by torch-edl run "
                    "--load DIR"
                )
            module.store = self
        # A planning run must not update running statistics or draw random numbers.
        self._quiet = any(isinstance(m, DROPOUTS) for m in model.modules()) or any(
            True for _ in model.buffers()
        )
        # True if the model changes its features in place; None if that is unknown yet.
        self._alters: bool | None = None if self.tables else False
        self._noted: dict[Place, Ids] = {}
        self._plain = IdPrediction()
        # Lookups of a script's minibatch without a prediction.
        self._seen: list[Lookup] = []
        self._seen_in_training = True
        self.gradients_taken = False
        """True after the step took the gradients, which are then hidden from the parameters."""
        self._devices: dict[str, torch.device] = {}

    def connect(self, servers: int, pull: PullRows) -> None:
        devices = {module.table: module.weight.device for module in self.tables}
        self._devices = {name: each for name, each in devices.items() if each.type != "cpu"}
        super().connect(servers, pull)

    @property
    def training(self) -> bool:
        return self._model.training

    def given(self, features: Any) -> Any:
        # If the model may change its features, another run of the model needs the original.
        return features if self._alters is False else transform(features, _cloned)

    def use(self, plan: TorchPlan | None, number: int) -> None:
        if self._plan is not None:
            self._look_back(self._plan)
        super().use(plan, number)
        self._seen = []
        self.gradients_taken = False

    def show_gradients(self) -> None:
        """Make ``grad`` of the tables' parameters return the gradients of their rows.

        If modules share a table, only the first module has the gradient.
        """
        for table, module in {m.table: m for m in reversed(self.tables)}.items():
            show_row_gradients(module.weight, table, self)

    def gradient(self, table: str) -> Floats | None:
        """Return the gradient (u, dim) of a table's rows in use; None after it was taken."""
        if self._plan is None or self.gradients_taken:
            return None
        found = self._plan.gradient(table)
        return None if found is None else found[1]

    def drop_gradient(self, table: str) -> None:
        """Discard the gradient of a table, unless it was taken."""
        if self._plan is not None and not self.gradients_taken:
            self._plan.drop_gradient(table)

    def lookup(self, module: Table, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of a table; see :class:`~torch_edl.nn.rows.RowStore`."""
        if self._planning is not None:
            self._note(self._planning, self._call_of(module, ids.cpu()))
            return torch.zeros(()).expand(*ids.shape, module.embedding_dim)
        if self._plan is None:
            raise UsageError(
                f"table {module.table}: its rows are on parameter servers, which this process "
                "meets with the first batch; run the model in a loop over job.loader(), or after it"
            )
        if self._forward is None and not torch.is_grad_enabled():
            # An evaluation needs current rows and is no example for later minibatches.
            return lookup(module, *self._unplanned(module, ids.cpu()), ids)
        host = ids.cpu()
        calls, position = self._plan.calls[self._batch], self._call
        self._call += 1
        if position < len(calls) and _same(calls[position], module, host):
            block, inverse = self._plan.find(self._batch, position)
        else:
            if calls:
                self._plain.give_up()
            elif self._batch in self._plan.given and not self._plain.is_over:
                self._note_seen(self._plan.given[self._batch], module, ids)
            block, inverse = self._unplanned(module, host)
        return lookup(module, block, inverse, ids)

    def _look_back(self, plan: TorchPlan) -> None:
        """Check the prediction for the minibatch that has ended, or learn from its lookups."""
        given, planned = plan.given.get(self._batch, ()), len(plan.calls[self._batch])
        if 0 < self._call < planned:
            self._plain.give_up()
        elif self._forward is None:
            if self._seen:
                unchanged = [tensor for tensor, _ in given]
                self._plain.learn(unchanged, self._seen_in_training, self._seen)
        elif any(change_count(tensor) != before for tensor, before in given):
            # The prediction skipped the planning run, which would have detected this change.
            self._plain.give_up()

    def _note_seen(
        self, given: Sequence[tuple[torch.Tensor, int]], module: Table, ids: torch.Tensor
    ) -> None:
        if not self._seen:
            self._seen_in_training = self._model.training
        self._seen.append((module, ids))
        changed = [tensor for tensor, before in given if change_count(tensor) != before]
        if any(shares_memory(ids, tensor) for tensor in changed):
            self._plain.give_up()  # the ids are not those that the loader returned

    def _guessed(self, given: Sequence[torch.Tensor]) -> list[TorchCall]:
        """Predict the lookups of a script's minibatch; empty without a prediction."""
        found = self._plain.find(given, self._model.training) or []
        values: dict[Place, Ids] = {}
        for module, ids in found:
            try:
                _check_range(module, ids)
            except UsageError:  # raised again if the script really looks up these ids
                self._plain.give_up()
                return []
            values.setdefault(_place(ids), _flat(ids).copy())
        return [_call(module, ids, None, values[_place(ids)]) for module, ids in found]

    def _find(self, batches: Sequence[Any]) -> TorchPlan:
        noted: dict[int, list[tuple[torch.Tensor, int]]] = {}
        calls: list[list[TorchCall]] = [[] for _ in batches]
        if self.tables:
            calls = [self._calls(noted, number, each) for number, each in enumerate(batches)]
        return TorchPlan(calls, self._servers, DeviceBlock, given=noted, devices=self._devices)

    def _calls(
        self, noted: dict[int, list[tuple[torch.Tensor, int]]], number: int, features: Any
    ) -> list[TorchCall]:
        """Find the lookups of a minibatch."""
        given = tensors(features)
        if self._forward is None:
            noted[number] = [(t, change_count(t)) for t in given]
            return self._guessed(given)
        # If the model changes its features, ids cannot be read before the model has run.
        plain = self._alters is False and self._plain.find(given, self._model.training)
        self._noted = {}
        if not plain:
            return self._dry_run(self._forward, features)
        noted[number] = [(t, change_count(t)) for t in given]
        return [self._call_of(*each) for each in plain]

    def _dry_run(self, forward: Callable[[Any], Any], features: Any) -> list[TorchCall]:
        unchanged = self._alters is False
        features = self.given(features)
        given = tensors(features)
        versions = [change_count(t) for t in given]
        was_training = self._model.training
        if self._quiet:
            self._model.eval()
        try:
            with torch.no_grad():
                calls = super()._dry_run(forward, features)
        finally:
            if self._quiet:
                self._model.train(was_training)
        if self._alters is not True:
            altered = versions != [change_count(t) for t in given]
            if altered and self._alters is False:
                raise UsageError(
                    "the model changes a minibatch in place, and did not change the first one: "
                    "its ids cannot be found ahead of time; clone() in forward what it changes"
                )
            self._alters = altered
        if unchanged:
            self._plain.learn(given, was_training, [(c.module, c.ids) for c in calls])
        return calls

    def _call_of(self, module: Table, ids: torch.Tensor) -> TorchCall:
        _check_range(module, ids)
        place = _place(ids)
        values = self._noted.get(place)
        if values is None:
            values = self._noted[place] = _flat(ids).copy()
        return _call(module, ids, place, values)

    def _unplanned(self, module: Table, ids: torch.Tensor) -> tuple[DeviceBlock, Ids]:
        assert self._plan is not None
        assert self._pull is not None
        _check_range(module, ids)
        call = RowLookup(module.table, module.embedding_dim, _flat(ids))
        return self._plan.pull(call, self._pull, keep=torch.is_grad_enabled())


def _flat(ids: torch.Tensor) -> Ids:
    # A column of a batch is not contiguous.
    return np.ascontiguousarray(ids.reshape(-1).cpu().numpy())


def _call(module: Table, ids: torch.Tensor, place: Place | None, values: Ids) -> TorchCall:
    return TorchCall(module.table, module.embedding_dim, values, module, ids, place)


def _same(call: TorchCall, module: Table, ids: torch.Tensor) -> bool:
    if call.module is not module or call.ids.shape != ids.shape:
        return False
    return call.place == _place(ids) or np.array_equal(call.values, _flat(ids))


def _place(ids: torch.Tensor) -> Place:
    """Return address, version and layout of a tensor, which are equal only for equal values. A view
    may have the same address and other values."""
    return ids.data_ptr(), change_count(ids), tuple(ids.shape), ids.stride(), ids.dtype


def _check_range(module: Table, ids: torch.Tensor) -> None:
    if module.num_embeddings is not None and ids.numel():
        low, high = ids.aminmax()
        module.options.check_range(module.table, int(low), int(high), argument="num_embeddings")

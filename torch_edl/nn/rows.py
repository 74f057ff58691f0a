"""Rows of tables: the differentiable step from rows to the output of an embedding, the rows of a
table in this process, and the layout of rows in a ``state_dict``.

A table with ``num_embeddings`` is ``NAME.weight`` (num_embeddings, dim) in a ``state_dict``, as in
``torch.nn.Embedding``. A table without bound is ``NAME.ids`` (n,) int64 and ``NAME.vectors``
(n, dim), sorted by id. ``load_state_dict`` of a module of ``torch_edl.nn`` takes both.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.nn.device_rows import DeviceRows
from torch_edl.optim import optimizer_config
from torch_edl.tables.optimizers import FROZEN, Optimizers
from torch_edl.tables.row_block import RowBlock, look_up, update
from torch_edl.tables.table import EmbeddingTable, Rows
from torch_edl.wire import pserver_pb2 as pb

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

WEIGHT, IDS, VECTORS = "weight", "ids", "vectors"

_ALL_ROWS = 1 << 62

_UNTRAINED = Optimizers("sgd", ())  # the kernel comes with the first step of an optimizer

# By the weight that stands for the table in an optimizer's groups.
_tables: weakref.WeakValueDictionary[int, LocalRows] = weakref.WeakValueDictionary()


class DeviceBlock(RowBlock):
    """A block whose rows are looked up on the device of the ids.

    Args:
        on_gradient: called with the block at its first gradient.
    """

    __slots__ = ("_devices", "_on_gradient", "_reached")

    def __init__(
        self, values: Floats, on_gradient: Callable[[DeviceBlock], None] | None = None
    ) -> None:
        super().__init__(values)
        self._on_gradient = on_gradient
        self._reached = False
        self._devices: dict[torch.device, DeviceRows] = {}

    @property
    def grads(self) -> Floats | None:
        for rows in self._devices.values():
            gradient = rows.take_gradient()
            if gradient is not None:
                self._grads = gradient if self._grads is None else self._grads + gradient
        return self._grads

    def drop_gradient(self) -> None:
        for rows in self._devices.values():
            rows.drop_gradient()
        super().drop_gradient()

    def on(self, device: torch.device) -> DeviceRows:
        """The rows on another device than the CPU; their copy begins with the first call."""
        if device not in self._devices:
            self._devices[device] = DeviceRows(self.values, device)
        return self._devices[device]

    def start_down(self) -> None:
        """Begins to copy gradients from other devices, which :attr:`grads` waits for."""
        for rows in self._devices.values():
            rows.start_down()

    def add(self, inverse: Ids, gradient: Floats) -> None:
        super().add(inverse, gradient)
        self.note_gradient()

    def note_gradient(self) -> None:
        """Tells, the first time, that there is a gradient."""
        if not self._reached and self._on_gradient is not None:
            self._on_gradient(self)
        self._reached = True


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


def lookup(
    module: TableModule, block: DeviceBlock, inverse: Ids, ids: torch.Tensor
) -> torch.Tensor:
    """Rows ``inverse`` (n,) of a block as a tensor (*ids.shape, dim) on the device of ``ids``.

    The empty parameter of the module ties the block to the autograd graph.
    """
    how = _Lookup if ids.device.type == "cpu" else LookupOnDevice
    out: torch.Tensor = how.apply(module.weight, block, inverse, ids.device)  # type: ignore[no-untyped-call]
    return out.view(*ids.shape, module.embedding_dim)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, block: DeviceBlock, inverse: Ids, device: torch.device
    ) -> torch.Tensor:
        out = torch.empty(len(inverse), block.values.shape[1])
        block.gather(inverse, out.numpy())
        ctx.block, ctx.inverse, ctx.weight_like = block, inverse, weight
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        ctx.block.add(ctx.inverse, gradient.contiguous().numpy())
        return torch.empty_like(ctx.weight_like), None, None, None


class LookupOnDevice(torch.autograd.Function):
    """A lookup whose rows, and the sum of whose gradients, stay on a device."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, block: DeviceBlock, inverse: Ids, device: torch.device
    ) -> torch.Tensor:
        """See :func:`lookup`."""
        rows = block.on(device)
        out, index = rows.look_up(inverse)
        ctx.block, ctx.rows, ctx.index, ctx.weight_like = block, rows, index, weight
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Adds the gradient to those of the block."""
        ctx.rows.add(ctx.index, gradient)
        ctx.block.note_gradient()
        return torch.empty_like(ctx.weight_like), None, None, None


class LocalRows:
    """The rows of one table, in a hash table of this process.

    A torch optimizer does not know about rows. A hook after its ``step`` updates the rows of every
    table whose ``weight`` the optimizer has, with the kernel and the hyperparameters of the
    parameter group of that weight.
    """

    def __init__(self, module: TableModule) -> None:
        self._module = weakref.ref(module)
        self._table: EmbeddingTable | None = None
        self._optimizers = _UNTRAINED
        self.loaded = False
        """Rows came from a ``state_dict``."""
        # The rows that got gradients since the last step.
        self._pending: list[tuple[Ids, DeviceBlock]] = []
        _tables[id(module.weight)] = self

    def lookup(self, module: TableModule, ids: torch.Tensor) -> torch.Tensor:
        """See :class:`RowStore`."""
        flat = ids.reshape(-1).cpu().numpy()
        unique, values, inverse = look_up(self.table, flat, training=module.training)
        if module.weight.grad is None:
            self._pending.clear()  # zero_grad() was called, or this is the first pass
        block = DeviceBlock(values, lambda filled: self._pending.append((unique, filled)))
        return lookup(module, block, inverse, ids)

    def step(self, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Updates the rows that got gradients since the last step."""
        used, self._pending = self._pending, []
        for _, block in used:
            block.start_down()
        if used:
            self.use_kernel(optimizer, group)
            update(self.table, used, [float(g["lr"]) for g in optimizer.param_groups])

    def rows(self) -> tuple[Ids, Floats]:
        """All rows that exist: ids (n,) in no order, and vectors (n, dim)."""
        found = self._all()
        return found.ids, found.vectors

    def weight(self) -> Floats:
        """The whole table (num_embeddings, dim), rows that do not exist as they would start."""
        module = self._module()
        assert module is not None
        assert module.num_embeddings is not None
        whole = np.empty((module.num_embeddings, module.embedding_dim), np.float32)
        self.table.core.pull_into(np.arange(module.num_embeddings), whole, read_only=True)
        return whole

    def replace(self, ids: Ids, vectors: Floats) -> None:
        """Replaces all rows by these, with new optimizer slots."""
        old, none = self.table, np.zeros(len(ids), np.int64)
        self._table = EmbeddingTable(old.info, old.seed, self._optimizers, old.declared)
        self._pending = []
        slots = np.empty((len(ids), 0, old.dim), np.float32)
        self._table.load(Rows(ids, vectors, slots, none, none), [])
        self._table.fit()

    def restore(self, source: CheckpointReader) -> None:
        """Takes rows, slots and step from a checkpoint; :meth:`use_kernel` comes before, unless no
        optimizer has the table."""
        self._table = source.restore_table(self.table.declared, self._optimizers)

    def use_kernel(self, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Gives the rows the slots of an optimizer, unless they have those of another already."""
        module = self._module()
        if self._optimizers is not _UNTRAINED or module is None:
            return
        self._optimizers = Optimizers.from_proto(optimizer_config(optimizer))
        old = self._all()
        slots = self.table.slot_names
        self._table = EmbeddingTable(module.info(group), self.table.seed, self._optimizers)
        self._table.load(old, slots)
        self._table.fit()

    @property
    def table(self) -> EmbeddingTable:
        """The hash table, created on first use."""
        if self._table is None:
            module = self._module()
            assert module is not None
            seed = torch.initial_seed() & (2**62 - 1)
            self._table = EmbeddingTable(module.info(FROZEN), seed, _UNTRAINED)
        return self._table

    def _all(self) -> Rows:
        table = self.table
        table.core.begin_snapshot()
        with contextlib.closing(table.snapshot_rows(_ALL_ROWS)) as chunks:
            found = next(chunks, None)
        if found is None:
            none = np.empty(0, np.int64)
            slots = np.empty((0, len(table.slot_names), table.dim), np.float32)
            return Rows(none, np.empty((0, table.dim), np.float32), slots, none, none)
        return found


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _tables:
        return  # every optimizer of the process comes here
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            rows = _tables.get(id(parameter)) if parameter.shape[0:1] == (0,) else None
            if rows is not None:
                rows.step(optimizer, index)


register_optimizer_step_post_hook(_after_step)


def state_of_weight(modules: Sequence[str], weight: Floats) -> dict[str, torch.Tensor]:
    """A whole table with a bound, under the paths of its modules."""
    return {_key(path, WEIGHT): torch.from_numpy(weight) for path in modules}


def state_of_rows(modules: Sequence[str], ids: Ids, vectors: Floats) -> dict[str, torch.Tensor]:
    """A table without bound, its rows in any order."""
    order = np.argsort(ids)
    made = {IDS: torch.from_numpy(ids[order]), VECTORS: torch.from_numpy(vectors[order])}
    return {_key(path, key): value for path in modules for key, value in made.items()}


def rows_in_state(
    state: Mapping[str, Any], prefix: str, num_embeddings: int | None, dim: int
) -> tuple[Ids, Floats] | None:
    """Ids (n,) and vectors (n, dim) of a table in a ``state_dict``; None if the table is not there.

    Raises:
        ValueError: the values do not fit the table; the text says why.
    """
    if prefix + IDS in state and prefix + VECTORS in state:
        ids, vectors = state[prefix + IDS], state[prefix + VECTORS]
        if ids.dtype != torch.int64 or vectors.shape != (len(ids), dim):
            raise ValueError(
                f"{prefix}ids: {ids.dtype} {tuple(ids.shape)}, vectors {tuple(vectors.shape)}; "
                f"expected int64 (n,) and (n, {dim})"
            )
        if num_embeddings and len(ids):
            low, high = (int(end) for end in ids.aminmax())
            if low < 0 or high >= num_embeddings:
                raise ValueError(
                    f"{prefix}ids: {low} to {high}, but this table has {num_embeddings} rows"
                )
    elif prefix + WEIGHT in state:
        vectors = state[prefix + WEIGHT]
        if not num_embeddings or vectors.shape != (num_embeddings, dim):
            raise ValueError(
                f"{prefix}weight: {tuple(vectors.shape)}; expected "
                + (f"({num_embeddings}, {dim})" if num_embeddings else f"{prefix}ids and vectors")
            )
        ids = torch.arange(num_embeddings)
    else:
        return None
    return ids.cpu().numpy(), vectors.detach().cpu().float().contiguous().numpy()


def _key(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key

"""Rows of tables: the differentiable lookup, the rows of a table in this process, and the layout of
rows in a ``state_dict``.

In a ``state_dict``, a table with ``num_embeddings`` is ``NAME.weight`` (num_embeddings, dim), as in
``torch.nn.Embedding``. A table without a bound is ``NAME.ids`` (n,) int64 and ``NAME.vectors``
(n, dim), sorted by id. ``load_state_dict`` of a module of ``torch_edl.nn`` accepts both.
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
from torch_edl.tables.table import EmbeddingTable, RowBlock, TableRows, look_up, update
from torch_edl.wire import pserver_pb2 as pb

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

WEIGHT, IDS, VECTORS = "weight", "ids", "vectors"

_ALL_ROWS = 1 << 62

# Without groups, it changes no row. The first step of an optimizer replaces it.
_UNTRAINED = Optimizers("sgd", ())

# Keyed by the id of the weight that represents the table in an optimizer's groups.
_tables: weakref.WeakValueDictionary[int, LocalRows] = weakref.WeakValueDictionary()


class DeviceBlock(RowBlock):
    """A block whose rows are looked up on the device of the ids.

    Args:
        on_gradient: called with the block when it gets its first gradient.
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
        """Return the rows on another device than the CPU; the first call starts their copy."""
        if device not in self._devices:
            self._devices[device] = DeviceRows(self.values, device)
        return self._devices[device]

    def start_down(self) -> None:
        """Start to copy gradients from other devices; :attr:`grads` waits for the copies."""
        for rows in self._devices.values():
            rows.start_down()

    def add(self, inverse: Ids, gradient: Floats) -> None:
        super().add(inverse, gradient)
        self.note_gradient()

    def note_gradient(self) -> None:
        """Call ``on_gradient`` for the first gradient."""
        if not self._reached and self._on_gradient is not None:
            self._on_gradient(self)
        self._reached = True


class TableModule(Protocol):
    """Interface of an embedding module, as used by a row store."""

    num_embeddings: int | None
    embedding_dim: int
    training: bool
    weight: torch.nn.Parameter
    """An empty parameter (0, dim) that represents the table."""

    def info(self, group: int) -> pb.EmbeddingTableInfo:
        """Return the description of the table; ``group`` is its parameter group."""
        ...


class RowStore(Protocol):
    """Source of the rows of embedding modules."""

    def lookup(self, module: Any, ids: torch.Tensor) -> torch.Tensor:
        """Return rows (*ids.shape, dim) of the module's table, differentiable."""
        ...


def lookup(
    module: TableModule, block: DeviceBlock, inverse: Ids, ids: torch.Tensor
) -> torch.Tensor:
    """Return the rows ``inverse`` (n,) of a block as a tensor (*ids.shape, dim) on the device of
    ``ids``.

    The empty parameter of the module connects the block to the autograd graph.
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
    """A lookup whose rows and sum of gradients stay on a device."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, block: DeviceBlock, inverse: Ids, device: torch.device
    ) -> torch.Tensor:
        """Return the rows; see :func:`lookup`."""
        rows = block.on(device)
        out, index = rows.look_up(inverse)
        ctx.block, ctx.rows, ctx.index, ctx.weight_like = block, rows, index, weight
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Add the gradient to that of the block."""
        ctx.rows.add(ctx.index, gradient)
        ctx.block.note_gradient()
        return torch.empty_like(ctx.weight_like), None, None, None


class LocalRows:
    """The rows of one table, in a hash table of this process.

    A torch optimizer knows nothing of rows. A hook after its ``step`` updates the rows of every
    table whose ``weight`` the optimizer has. The hyperparameters are those of the weight's
    parameter group at the first step, except for the learning rate, which is the current one.
    """

    def __init__(self, module: TableModule) -> None:
        self._module = weakref.ref(module)
        self._table: EmbeddingTable | None = None
        self._optimizers = _UNTRAINED
        self.loaded = False
        """True if rows were loaded from a ``state_dict``."""
        # Rows that received gradients since the last step.
        self._pending: list[tuple[Ids, DeviceBlock]] = []
        _tables[id(module.weight)] = self

    def lookup(self, module: TableModule, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the table; see :class:`RowStore`."""
        flat = ids.reshape(-1).cpu().numpy()
        unique, values, inverse = look_up(self.table, flat, training=module.training)
        block = DeviceBlock(values, lambda filled: self._pending.append((unique, filled)))
        return lookup(module, block, inverse, ids)

    def step(self, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Update the rows that received gradients since the last step."""
        used, self._pending = self._pending, []
        for _, block in used:
            block.start_down()
        if used:
            self.use_kernel(optimizer, group)
            update(self.table, used, [float(g["lr"]) for g in optimizer.param_groups])

    def drop_gradients(self) -> None:
        """Discard the gradients since the last step."""
        self._pending = []

    def rows(self) -> tuple[Ids, Floats]:
        """Return all existing rows: ids (n,) in any order, and vectors (n, dim)."""
        found = self._all()
        return found.ids, found.vectors

    def weight(self) -> Floats:
        """Return the whole table (num_embeddings, dim); missing rows have their initial values."""
        module = self._module()
        assert module is not None
        assert module.num_embeddings is not None
        return self.table.core.pull(np.arange(module.num_embeddings), read_only=True)

    def replace(self, ids: Ids, vectors: Floats) -> None:
        """Replace all rows, and reset the optimizer slots."""
        old, none = self.table, np.zeros(len(ids), np.int64)
        self._table = EmbeddingTable(old.info, old.seed, self._optimizers, old.declared)
        self._pending = []
        slots = np.empty((len(ids), 0, old.dim), np.float32)
        self._table.load(TableRows(ids, vectors, slots, none, none), [])
        self._table.fit()

    def restore(self, source: CheckpointReader) -> None:
        """Restore rows, slots and step from a checkpoint.

        :meth:`use_kernel` must be called before, if an optimizer has the table.
        """
        self._table = source.restore_table(self.table.declared, self._optimizers)

    def use_kernel(self, optimizer: torch.optim.Optimizer, group: int) -> None:
        """Create the optimizer slots of the rows, unless the table already has slots."""
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
        """Hash table of the rows, created on first use."""
        if self._table is None:
            module = self._module()
            assert module is not None
            seed = torch.initial_seed() & (2**62 - 1)
            self._table = EmbeddingTable(module.info(FROZEN), seed, _UNTRAINED)
        return self._table

    def _all(self) -> TableRows:
        table = self.table
        table.core.begin_snapshot()
        with contextlib.closing(table.snapshot_rows(_ALL_ROWS)) as chunks:
            found = next(chunks, None)
        if found is None:
            none = np.empty(0, np.int64)
            slots = np.empty((0, len(table.slot_names), table.dim), np.float32)
            return TableRows(none, np.empty((0, table.dim), np.float32), slots, none, none)
        return found


def drop_gradients(weight: torch.Tensor) -> None:
    """Discard the gradients of a table's rows, if the rows are in this process."""
    rows = _tables.get(id(weight))
    if rows is not None:
        rows.drop_gradients()


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _tables:
        return  # this hook is called for every optimizer of the process
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            rows = _tables.get(id(parameter)) if parameter.shape[0:1] == (0,) else None
            if rows is not None:
                rows.step(optimizer, index)


register_optimizer_step_post_hook(_after_step)


def state_of_weight(modules: Sequence[str], weight: Floats) -> dict[str, torch.Tensor]:
    """Return the entries of a table with a bound, for each of its modules."""
    return {_key(path, WEIGHT): torch.from_numpy(weight) for path in modules}


def state_of_rows(modules: Sequence[str], ids: Ids, vectors: Floats) -> dict[str, torch.Tensor]:
    """Return the entries of a table without a bound, for each of its modules; sort the rows."""
    order = np.argsort(ids)
    made = {IDS: torch.from_numpy(ids[order]), VECTORS: torch.from_numpy(vectors[order])}
    return {_key(path, key): value for path in modules for key, value in made.items()}


def rows_in_state(
    state: Mapping[str, Any], prefix: str, num_embeddings: int | None, dim: int
) -> tuple[Ids, Floats] | None:
    """Return ids (n,) and vectors (n, dim) of a table in a ``state_dict``; None if missing.

    Raises:
        ValueError: the values do not fit the table; the message contains the reason.
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

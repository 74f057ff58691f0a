"""One embedding table: the compiled table with its update counter, and the rows of a table that one
minibatch looks up."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.tables.optimizers import BUFFER, FROZEN, Optimizers
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TableRows:
    """Rows of a table as flat arrays, for n ids and k slots."""

    ids: Ids
    """(n,)"""
    vectors: Floats
    """(n, dim)"""
    slots: Floats
    """(n, k, dim)"""
    last_used: Ids
    """(n,) number of the table's update that last used the row"""
    count: Ids
    """(n,) number of updates that used the row"""


@dataclass(frozen=True)
class AdmissionCounts:
    """Ids without a row whose updates ``min_count`` counts, as flat arrays."""

    ids: Ids
    """(n,)"""
    count: Ids
    """(n,) number of updates that used the id"""
    last_used: Ids
    """(n,) number of the table's update that last used the id"""


def is_table_name(name: str) -> bool:
    """Return True for a valid table name, which is also the name of a file of the output."""
    return bool(name) and not set("/\0") & set(name) and not name.startswith(".")


def storage_dtype(info: pb.EmbeddingTableInfo) -> str:
    """Return the type of rows in memory, a name of :data:`~torch_edl.wire.codec.STORAGE_DTYPES`.

    Raises:
        UsageError: the description has an unsupported type.
    """
    return codec.float_name(info.storage_dtype or tensor.DT_FLOAT, codec.STORAGE_DTYPES)


class EmbeddingTable:
    """Rows by id, with the optimizer that updates them.

    Args:
        info: description of the table.
        seed: seed of new rows; an initial row depends on seed, table name and id only.
        declared: the description from the workers, if it differs from ``info``. A restored table
            keeps the initializer that it was trained with.
        shards: number of shards of the table; each gets an equal share of ``max_rows`` and
            ``max_bytes``.

    Raises:
        UsageError: the description is invalid; the message names the field.
    """

    def __init__(
        self,
        info: pb.EmbeddingTableInfo,
        seed: int,
        optimizers: Optimizers,
        declared: pb.EmbeddingTableInfo | None = None,
        shards: int = 1,
    ) -> None:
        self.info = info
        self.declared = declared or info
        self.name = info.name
        self.dim = info.dim
        self.seed = seed
        if not is_table_name(info.name):
            raise UsageError(f"table name {info.name!r}: use a module path such as deep.embedding")
        if info.group == BUFFER:
            raise UsageError(
                f"table {info.name}: group {BUFFER} is of buffers; give the table one of the "
                f"optimizer's groups, or {FROZEN} to freeze it"
            )
        kernel = optimizers.kernel(info.group, f"table {info.name}")
        self.slot_names: list[str] = kernel.slots if kernel else []
        self.slot_initial: list[float] = kernel.slot_initial if kernel else []
        self.on_disk = bool(info.folder)
        """True if the rows are on a disk."""
        self.evicted = 0
        """Number of rows and counted ids that were removed since the start of the process."""
        self.group = info.group
        """Parameter group of the optimizer."""
        self._frozen = info.group == FROZEN
        # A round of evictions visits every row. With four rounds in max_age, a row stays at most a
        # quarter of max_age too long.
        self._round_steps = max(1, info.max_age // 4) if info.max_age > 0 else 0
        self._step = 0
        self._step_lock = threading.Lock()
        try:
            self.core = _core.Table(
                info.name,
                info.dim,
                info.initializer.kind,
                dict(info.initializer.args),
                seed,
                kernel,
                info.num_embeddings,
                info.min_count,
                info.max_age,
                -(-info.max_rows // shards),
                -(-info.max_bytes // shards),
                storage_dtype(info),
                info.folder,
            )
        except ValueError as error:
            raise UsageError(f"table {info.name}: {error}") from None
        except OSError as error:
            raise UsageError(
                f"table {info.name}: {error.strerror}; name a folder on a local disk of this server"
            ) from None

    @property
    def step(self) -> int:
        """Number of updates of the table."""
        return self._step

    def gradient_dtype(self, values: tensor.TensorProto, n: int) -> str:
        """Return the type of the gradient of n ids, a name of
        :data:`~torch_edl.wire.codec.FLOAT_DTYPES`.

        Raises:
            UsageError: the type is unsupported, the shape is not (n, dim), or the table is frozen.
        """
        shape = tuple(d.size for d in values.tensor_shape.dim)
        if values.dtype not in codec.FLOAT_DTYPES.values():
            dtype = codec.name_of(values.dtype)
            raise UsageError(
                f"table {self.name}: gradient of {dtype}, shape {shape}; expected float32"
            )
        if shape != (n, self.dim):
            raise UsageError(
                f"table {self.name}: gradient of shape {shape}; expected {(n, self.dim)}"
            )
        if self._frozen:
            raise UsageError(f"table {self.name}: frozen, it takes no gradient")
        return codec.float_name(values.dtype)

    def prepare(self, ids: Ids) -> None:
        """Read the rows of a push of ids (n,) from the disk, and make room for those that the push
        creates.

        Raises:
            OSError: the disk is full.
        """
        self.core.prepare(ids)

    def _begin_update(self) -> tuple[int, bool]:
        """Count an update. Returns its number, and True if a round of evictions begins with it."""
        with self._step_lock:
            self._step = step = self._step + 1
        return step, self._round_steps > 0 and step % self._round_steps == 0

    def snapshot_counts(self, ids_per_chunk: int) -> Iterator[AdmissionCounts]:
        """Yield the ids counted at ``core.begin_snapshot()``. The snapshot stays open."""
        while (chunk := self.core.next_counts(ids_per_chunk)) is not None:
            yield AdmissionCounts(*chunk)

    def snapshot_rows(self, rows_per_chunk: int) -> Generator[TableRows, None, None]:
        """Yield the rows as of ``core.begin_snapshot()``; the snapshot ends with the iteration."""
        try:
            while (chunk := self.core.next_chunk(rows_per_chunk)) is not None:
                yield TableRows(*chunk)
        finally:
            self.core.end_snapshot()

    def load(self, rows: TableRows, slot_names: Sequence[str]) -> None:
        """Set rows; raise ValueError if their shapes do not fit. Slots are matched by name, and
        missing slots get their initial values."""
        slots = np.empty((len(rows.ids), len(self.slot_names), self.dim), np.float32)
        for k, (name, initial) in enumerate(zip(self.slot_names, self.slot_initial, strict=True)):
            if name in slot_names:
                slots[:, k] = rows.slots[:, slot_names.index(name)]
            else:
                slots[:, k] = initial
        self.core.load(rows.ids, rows.vectors, slots, rows.last_used, rows.count)

    def load_counts(self, counts: AdmissionCounts) -> None:
        """Set the counts of ids without a row; raise ValueError if their shapes do not fit. Without
        ``min_count`` there are no counts."""
        self.core.load_counts(counts.ids, counts.count, counts.last_used)

    def fit(self) -> None:
        """Evict the least recently used rows and counted ids that exceed the bound."""
        core = self.core
        while not self._frozen and 0 < core.bound < max(core.size, core.counted):
            core.evict(self._step, aged=False)

    def resume_at(self, step: int) -> None:
        """Set the update counter to ``step``."""
        self._step = step


def apply_all(
    updates: Sequence[tuple[EmbeddingTable, Ids, Floats]], rates: Sequence[float], *, evict: bool
) -> list[Ids]:
    """Update the rows of several tables in one call of the core.

    Args:
        updates: tables with ids (n,) and gradients (n, dim), which were checked.
        rates: the learning rate of each parameter group.
        evict: also run the share of the eviction that is due: of the rows and counted ids that
            exceed ``max_age`` or the bound of their table.

    Returns:
        The ids (n,) that each table evicted.
    """
    pushes = []
    for table, ids, gradient in updates:
        pushes.append((table.core, ids, gradient, rates[table.group], *table._begin_update()))
    return _core.push_tables(pushes, evict)


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


class RecentIds:
    """The last ids that were looked up in this process.

    The tables of a model often look up the same ids, whose unique ids are then searched once.
    """

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self._last = (none, none, none)

    def unique(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return the unique ids (u,) of ids (n,), and the index (n,) of each id in them."""
        last, unique, inverse = self._last
        if not np.array_equal(last, ids):
            unique, _, inverse = _core.unique_partition(ids, 1)
            self._last = ids.copy(), unique, inverse
        return unique, inverse


_recent = RecentIds()


def look_up(table: EmbeddingTable, ids: Ids, *, training: bool) -> tuple[Ids, Floats, Ids]:
    """Look up the rows of ids (n,) in a table of this process.

    Args:
        training: create the rows of unknown ids.

    Returns:
        The unique ids (u,), their rows (u, dim), and the index (n,) of each id in the unique ids.
    """
    unique, inverse = _recent.unique(ids)
    return unique, table.core.pull(unique, read_only=not training), inverse


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
        apply_all([(table, ids, gradients)], rates, evict=True)

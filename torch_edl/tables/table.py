"""One embedding table of a shard: the compiled table, and the number of its updates."""

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
class Rows:
    """Rows of a table as flat arrays: n ids, k slots."""

    ids: Ids
    """(n,)"""
    vectors: Floats
    """(n, dim)"""
    slots: Floats
    """(n, k, dim)"""
    last_used: Ids
    """(n,) the table's update that used the row last"""
    count: Ids
    """(n,) updates that named the row"""


@dataclass(frozen=True)
class Counts:
    """Ids of a table that ``min_count`` counts, and that have no row yet, as flat arrays."""

    ids: Ids
    """(n,)"""
    count: Ids
    """(n,) updates that named the id"""
    last_used: Ids
    """(n,) the table's update that named the id last"""


def storage_dtype(info: pb.EmbeddingTableInfo) -> str:
    """How the rows are kept in memory, a name of :data:`~torch_edl.wire.codec.FLOAT_DTYPES`.

    Raises:
        UsageError: the description has another type.
    """
    return codec.float_name(info.storage_dtype or tensor.DT_FLOAT)


class EmbeddingTable:
    """Rows by id, and the optimizer's step.

    Args:
        info: description of the table.
        seed: an initial row is f(seed, name, id).
        shards: the rows are spread over so many tables; each has its share of ``max_rows`` and
            ``max_bytes``.
        declared: the description that the workers sent, where it differs from ``info``: a restored
            table keeps the initializer that it was trained with.

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
        if not info.name or "/" in info.name or info.name.startswith("."):
            raise UsageError(f"table name {info.name!r}: use a module path such as deep.embedding")
        if info.group == BUFFER:
            raise UsageError(
                f"table {info.name}: group {BUFFER} is of buffers; give the table one of the "
                f"optimizer's groups, or {FROZEN} to freeze it"
            )
        kernel = optimizers.kernel(info.group, f"table {info.name}")
        self.slot_names: list[str] = kernel.slots if kernel else []
        self.slot_initial: list[float] = kernel.slot_initial if kernel else []
        self._frozen = info.group == FROZEN
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
            )
        except ValueError as error:
            raise UsageError(f"table {info.name}: {error}") from None

    @property
    def step(self) -> int:
        """Updates so far."""
        return self._step

    def gradient_dtype(self, values: tensor.TensorProto, n: int) -> str:
        """What the gradient of n ids came as, a name of :data:`~torch_edl.wire.codec.FLOAT_DTYPES`.

        Raises:
            UsageError: another dtype, another shape than (n, dim), or the table is frozen.
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

    def _next_step(self) -> int:
        with self._step_lock:
            self._step += 1
            return self._step

    def apply(self, ids: Ids, gradient: Floats, rates: Sequence[float]) -> None:
        """One update of the rows of ``ids`` (n,) with ``gradient`` (n, dim), both checked."""
        self.core.push(ids, gradient, rates[self.info.group], self._next_step())

    def _is_round(self, step: int) -> bool:
        """Whether eviction begins a round for ``max_age`` after this update."""
        # A round visits every row: often enough that an old row stays a quarter of the age longer.
        max_age = self.info.max_age
        return max_age > 0 and step % max(1, max_age // 4) == 0

    def evict(self) -> Ids:
        """A part of the work of eviction, due after each update: removes some of the rows, and of
        the ids that are counted, which are too old, or beyond the bound; returns the ids (n,)."""
        return self.core.evict(self._step, self._is_round(self._step))

    def snapshot_counts(self, ids_per_chunk: int) -> Iterator[Counts]:
        """The ids that were counted as of ``core.begin_snapshot()``; the snapshot goes on."""
        while (chunk := self.core.next_counts(ids_per_chunk)) is not None:
            yield Counts(*chunk)

    def snapshot_rows(self, rows_per_chunk: int) -> Generator[Rows, None, None]:
        """The rows as of ``core.begin_snapshot()``; the snapshot ends with the iteration."""
        try:
            while (chunk := self.core.next_chunk(rows_per_chunk)) is not None:
                yield Rows(*chunk)
        finally:
            self.core.end_snapshot()

    def load(self, rows: Rows, slot_names: Sequence[str]) -> None:
        """Sets rows; slots are matched by name, and missing slots get their initial values.

        Raises:
            ValueError: the arrays do not fit each other or the table.
        """
        slots = np.empty((len(rows.ids), len(self.slot_names), self.dim), np.float32)
        for k, (name, initial) in enumerate(zip(self.slot_names, self.slot_initial, strict=True)):
            if name in slot_names:
                slots[:, k] = rows.slots[:, slot_names.index(name)]
            else:
                slots[:, k] = initial
        self.core.load(rows.ids, rows.vectors, slots, rows.last_used, rows.count)

    def load_counts(self, counts: Counts) -> None:
        """Sets the counts of ids that have no row; without a ``min_count`` there are none.

        Raises:
            ValueError: the arrays do not fit each other or the table.
        """
        self.core.load_counts(counts.ids, counts.count, counts.last_used)

    def fit(self) -> None:
        """Evicts the least recently used rows, and ids that are counted, beyond the bound."""
        core = self.core
        while not self._frozen and 0 < core.bound < max(core.size, core.counted):
            core.evict(self._step, aged=False)

    def resume_at(self, step: int) -> None:
        """Counts updates from ``step`` on."""
        self._step = step


def apply_all(
    updates: Sequence[tuple[EmbeddingTable, Ids, Floats]], rates: Sequence[float], *, evict: bool
) -> list[Ids]:
    """One update of each table, as :meth:`EmbeddingTable.apply`, in one call of the core. Returns
    the ids (n,) that each table then evicted; none where ``evict`` is False."""
    pushes = []
    for table, ids, gradient in updates:
        step = table._next_step()
        rate = rates[table.info.group]
        pushes.append((table.core, ids, gradient, rate, step, table._is_round(step)))
    return _core.push_tables(pushes, evict)

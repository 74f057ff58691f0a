"""The part of the model that a server holds, and the one way to change it: a push, decoded and
checked as a whole, and applied once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.config import TrainConfig
from torch_edl.errors import EdlError, UsageError
from torch_edl.tables.dense import DenseShard
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

log = logging.getLogger(__name__)

_TASK_LOCKS = 64


@dataclass(frozen=True)
class Gradients:
    """One push, or the mean of several."""

    dense: Floats | None
    """(n,) the flat gradient of the shard"""
    tables: list[tuple[EmbeddingTable, Ids, Floats]]
    """ids (n,) and gradients (n, dim)"""
    rates: list[float]
    """One per parameter group; empty: the rates of the groups."""
    version: int
    """Version of the parameters that the gradient was computed with."""
    untouched: frozenset[int] = frozenset()
    """Places of dense parameters that the loss did not reach; ``dense`` is zero there in sync
    mode, and undefined otherwise."""
    exact: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """New values of buffers that are not float32."""


@dataclass(frozen=True)
class Cut:
    """A shard at one moment. The snapshots of its tables have begun, so that their rows can be
    read later."""

    version: int
    dense: dict[str, npt.NDArray[Any]]
    """See :meth:`DenseShard.state`."""
    tables: list[tuple[EmbeddingTable, int]]
    """Each table with its step."""


class Shard:
    """Dense parameters, tables, version and watermarks.

    Args:
        rules: how pushes become updates.
        source: the checkpoint or exported model that values are restored from; None: values are
            those of the first worker.
        on_fatal: called when an update failed half-way. The model then holds a part of a push,
            which no retry can repair: the process has to end and be restored.
        shards: number of servers, which share the bounds of the tables.
    """

    def __init__(
        self,
        rules: TrainConfig,
        source: CheckpointReader | None,
        on_fatal: Callable[[], None],
        shards: int = 1,
    ) -> None:
        self._rules = rules
        self._shards = shards
        self._is_sync = rules.mode == "sync"
        self._source = source
        self._on_fatal = on_fatal
        self._broken = ""
        # The lock of a task covers check, update and watermark of one push, that of sync mode all
        # pushes; `_state` covers the fields below, for moments only.
        locks = 1 if self._is_sync else _TASK_LOCKS
        self._task_locks = [threading.Lock() for _ in range(locks)]
        self._state = threading.Lock()
        self._setup = threading.Lock()
        self.dense: DenseShard | None = None
        self.tables: dict[str, EmbeddingTable] = {}
        self.version = source.version if source else 0
        self._applied = source.watermarks.copy() if source else Watermarks()
        # Sync mode: also what waits.
        self._received = self._applied.copy() if self._is_sync else self._applied
        # Sync mode: pushes that wait for their quorum, in order of arrival.
        self._waiting: list[tuple[pb.RecordRange, Gradients]] = []
        self._seed = 0

    # ---- setting up ----

    def initialize(self, request: pb.PushDenseParametersRequest) -> bool:
        """Takes the dense parameters; False if an earlier worker sent them, with the same layout.

        Raises:
            UsageError: the parameters or the optimizer are invalid, or not the first worker's.
        """
        with self._setup:
            dense = DenseShard(request.parameters, Optimizers.from_proto(request.optimizer))
            if self.dense is not None:
                new, old = dense.layout(), self.dense.layout()
                if new != old:
                    raise UsageError(
                        "dense parameters: another layout than the first worker's; "
                        f"{_difference(new, old)}"
                    )
                if not dense.optimizers.same(self.dense.optimizers):
                    raise UsageError("optimizer: not the first worker's; use one model file")
                return False
            if self._source:
                dense.restore(*self._source.dense())
            self._seed = request.seed
            self.dense = dense
            return True

    def add_tables(self, infos: Sequence[pb.EmbeddingTableInfo]) -> None:
        """Creates the tables that do not exist; an existing table must have the same description.

        Raises:
            UsageError: the dense parameters have not come yet, or a table is invalid or differs.
        """
        with self._setup:
            if self.dense is None:
                raise UsageError("tables: send PushDenseParameters first, with the optimizer")
            for info in infos:
                there = self.tables.get(info.name)
                if there is None:
                    self.tables[info.name] = self._make(info, self.dense.optimizers)
                elif not _alike(there.declared, info):
                    raise UsageError(
                        f"table {info.name}: not the first worker's; that one is "
                        f"{_line(there.declared)}, this one {_line(info)}"
                    )

    def _make(self, info: pb.EmbeddingTableInfo, optimizers: Optimizers) -> EmbeddingTable:
        if self._source is None:
            return EmbeddingTable(info, self._seed, optimizers, shards=self._shards)
        table = self._source.restore_table(info, optimizers)
        log.info("table %s: %d rows restored", info.name, table.core.size)
        return table

    # ---- reading ----

    def table(self, name: str) -> EmbeddingTable:
        """The table of that name.

        Raises:
            UsageError: there is none.
        """
        self._require_sound()
        table = self.tables.get(name)
        if table is None:
            known = ", ".join(sorted(self.tables)) or "none"
            raise UsageError(f"table {name!r}: unknown here; there are: {known}")
        return table

    def offset(self, task_id: int) -> int:
        """The first record of the task that no push has had yet."""
        with self._state:
            return self._received.offset(task_id)

    def watermarks(self) -> Watermarks:
        """A copy of the watermarks of what is applied."""
        with self._state:
            return self._applied.copy()

    # ---- changing ----

    def push(self, request: pb.PushGradientsRequest) -> pb.PushGradientsResponse:
        """Applies a push unless it was applied before; in sync mode, keeps it for its quorum.

        Raises:
            UsageError: the content or the range is rejected; nothing has changed.
        """
        self._require_sound()
        if self.dense is None:
            raise UsageError("push: this server was not initialised; send its parameters first")
        r = request.range
        if r.task_id < 0 or request.retired_before < 0:
            raise UsageError(
                f"push of task {r.task_id}, retired_before {request.retired_before}: "
                "tasks count from 0"
            )
        with self._task_locks[r.task_id % len(self._task_locks)]:
            with self._state:
                for watermarks in (self._applied, self._received):
                    watermarks.retire(request.retired_before)
                if self._received.has(r.task_id, r.first, r.last):
                    return pb.PushGradientsResponse(
                        accepted=True, duplicate=True, version=self.version
                    )
                if self._is_sync and self.version - request.version > self._rules.staleness:
                    return pb.PushGradientsResponse(accepted=False, version=self.version)
            gradients = self._decode(request)
            if not self._is_sync:
                self._apply([(r, gradients)])
            else:
                self._waiting.append((r, gradients))
                with self._state:
                    self._received.advance(r.task_id, r.last)
                if len(self._waiting) >= self._rules.grads_to_wait:
                    self._apply_waiting()
            return pb.PushGradientsResponse(accepted=True, version=self.version)

    def flush(self) -> int:
        """Sync mode: applies what waits for its quorum; returns the version."""
        self._require_sound()
        with self._task_locks[0]:
            self._apply_waiting()
            return self.version

    def _apply_waiting(self, targets: Watermarks | None = None) -> None:
        """Applies the mean of what waits, or of those pushes that are within ``targets``."""
        taken: list[tuple[pb.RecordRange, Gradients]] = []
        left: list[tuple[pb.RecordRange, Gradients]] = []
        for r, gradients in self._waiting:
            wanted = targets is None or r.last <= targets.offset(r.task_id)
            (taken if wanted else left).append((r, gradients))
        self._waiting = left
        if taken:
            self._apply(taken)

    def _decode(self, request: pb.PushGradientsRequest) -> Gradients:
        """Views of the content of a push, all checked: applying them cannot fail half-way.

        Raises:
            UsageError: the content does not fit the shard, or a value is not finite.
        """
        assert self.dense is not None
        flat: Floats | None = None
        untouched = frozenset(request.without_gradient)
        if request.HasField("dense"):
            content = request.dense.tensor_content
            if request.dense.dtype != tensor.DT_FLOAT or len(content) % 4:
                raise UsageError(
                    f"dense gradient: dtype {request.dense.dtype}, {len(content)} bytes"
                )
            flat = np.frombuffer(content, "<f4")
            self.dense.check(flat, untouched)
            if untouched and self._is_sync:  # the mean of pushes counts it as zero
                flat = flat.copy()
                for place in untouched:
                    parameter = self.dense.parameters[place]
                    flat[parameter.start : parameter.stop] = 0
        tables: list[tuple[EmbeddingTable, Ids, Floats]] = []
        for entry in request.tables:
            table = self.table(entry.name)
            if any(other is table for other, _, _ in tables):
                raise UsageError(f"table {entry.name}: twice in one push; sum the gradients")
            ids = codec.entry_ids(entry, [i for _, i, _ in tables])
            tables.append((table, ids, table.gradient(ids, entry.values)))
        rates = list(request.learning_rates)
        self.dense.optimizers.rates(rates, 1.0)  # checks their number
        exact = self.dense.decode_exact(request.exact)
        return Gradients(flat, tables, rates, request.version, untouched, exact)

    def _apply(self, pushes: Sequence[tuple[pb.RecordRange, Gradients]]) -> None:
        """One update with the mean of pushes."""
        assert self.dense is not None
        gradients, behind = mean([push for _, push in pushes], self.dense.assigned), 1
        if self._rules.learning_rate_by_staleness:
            behind = max(1, self.version - gradients.version)
        rates = self.dense.optimizers.rates(gradients.rates, behind)
        try:
            if gradients.dense is not None:
                self.dense.apply(gradients.dense, rates, gradients.untouched)
            self.dense.assign_exact(gradients.exact)
            for table, ids, values in gradients.tables:
                table.apply(ids, values, rates)
                table.evict()
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            log.critical("an update failed half-way", exc_info=True)
            self._on_fatal()
            raise
        with self._state:
            for r, _ in pushes:
                self._applied.advance(r.task_id, r.last)
            self.version += 1

    def _require_sound(self) -> None:
        if self._broken:
            raise EdlError(f"this server stops: an update failed half-way ({self._broken})")

    # ---- snapshots: the caller keeps pushes out ----

    def has_received(self, targets: Watermarks) -> bool:
        """Whether every record of ``targets`` is applied here or waits for its quorum."""
        with self._state:
            return self._received.reached(targets)

    def cut(self, targets: Watermarks) -> Cut:
        """Freezes the state in which the records of ``targets`` are applied.

        In sync mode another server, whose quorum was made of other pushes, may have applied
        pushes that wait here: they are applied now.
        """
        assert self.dense is not None
        if self._is_sync:
            with self._task_locks[0]:
                self._apply_waiting(targets)
        dense = self.dense.state()
        tables = [(t, t.step) for t in self.tables.values()]
        for table, _ in tables:
            table.core.begin_snapshot()
        return Cut(self.version, dense, tables)


def _alike(first: pb.EmbeddingTableInfo, other: pb.EmbeddingTableInfo) -> bool:
    """Whether two workers ask for the same table. Measured initializers differ, since each worker
    draws its own weights."""
    if not (first.initializer.measured and other.initializer.measured):
        return first == other
    same = pb.EmbeddingTableInfo()
    same.CopyFrom(other)
    same.initializer.CopyFrom(first.initializer)
    return first == same


def _line(info: pb.EmbeddingTableInfo) -> str:
    start, args = info.initializer.kind, dict(sorted(info.initializer.args.items()))
    return (
        f"dim {info.dim}, num_embeddings {info.num_embeddings}, group {info.group}, "
        f"min_count {info.min_count}, max_age {info.max_age}, max_rows {info.max_rows}, "
        f"max_bytes {info.max_bytes}, rows start as {start} {args}"
    )


def _difference(new: Sequence[tuple[object, ...]], old: Sequence[tuple[object, ...]]) -> str:
    for ours, theirs in zip(old, new, strict=False):
        if ours != theirs:
            return f"here {ours}, there {theirs}"
    return f"here {len(old)} parameters, there {len(new)}"


def mean(pushes: Sequence[Gradients], assigned: Sequence[slice] = ()) -> Gradients:
    """The average of pushes: an id or parameter that a push lacks counts as zero in it.

    The rates, and values that are not float32, are those of the last push; the version is the
    oldest.

    Args:
        assigned: where ``dense`` holds values rather than gradients: values are averaged over the
            pushes that have them.
    """
    if len(pushes) == 1:
        return pushes[0]
    scale = np.float32(1 / len(pushes))
    moving = [p for p in pushes if p.dense is not None]
    dense = [p.dense for p in moving if p.dense is not None]
    by_table: dict[EmbeddingTable, list[tuple[Ids, Floats]]] = {}
    for push in pushes:
        for table, ids, values in push.tables:
            by_table.setdefault(table, []).append((ids, values))
    tables = []
    for table, parts in by_table.items():
        unique, _, inverse = _core.unique_partition(np.concatenate([i for i, _ in parts]), 1)
        sums = np.empty((len(unique), table.dim), np.float32)
        _core.scatter_sum(np.concatenate([v for _, v in parts]), inverse, sums)
        sums *= scale
        tables.append((table, unique, sums))
    total: Floats | None = None
    if dense:
        total = dense[0] * scale
        for other in dense[1:]:
            total += other * scale
        for part in assigned:
            total[part] *= len(pushes) / len(dense)
    return Gradients(
        dense=total,
        tables=tables,
        rates=pushes[-1].rates,
        version=min(p.version for p in pushes),
        untouched=frozenset.intersection(*(p.untouched for p in moving)) if moving else frozenset(),
        exact={name: value for p in pushes for name, value in p.exact.items()},
    )

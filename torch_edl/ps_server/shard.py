"""The part of the model that a server holds, and the one way to change it: a push, applied once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.writer import Cut
from torch_edl.errors import EdlError, UsageError
from torch_edl.ps_server.gradients import Gradients, decode, mean
from torch_edl.tables.dense import DenseShard
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import pserver_pb2 as pb

log = logging.getLogger(__name__)

_TASK_LOCKS = 64


@dataclass(frozen=True, kw_only=True)
class UpdateRules:
    """How pushes become updates; see ``TrainConfig``."""

    sync: bool = False
    grads_to_wait: int = 1
    staleness: int = 0
    learning_rate_by_staleness: bool = False


@dataclass(frozen=True)
class _Waiting:
    """A push that waits for its quorum: the records of a task up to ``last``."""

    task_id: int
    last: int
    gradients: Gradients


class Shard:
    """Dense parameters, tables, version and watermarks.

    Args:
        source: the checkpoint or exported model that values are restored from; None: values are
            those of the first worker.
        on_fatal: called when an update failed half-way. The model then holds a part of a push,
            which no retry can repair: the process has to end and be restored.
    """

    def __init__(
        self, rules: UpdateRules, source: CheckpointReader | None, on_fatal: Callable[[], None]
    ) -> None:
        self._rules = rules
        self._source = source
        self._on_fatal = on_fatal
        self._broken = ""
        # The lock of a task covers check, update and watermark of one push; `_state` covers the
        # fields below, for moments only.
        self._task_locks = [threading.Lock() for _ in range(_TASK_LOCKS)]
        self._state = threading.Lock()
        self._setup = threading.Lock()
        self._sync = threading.Lock()
        self.dense: DenseShard | None = None
        self._aliases: dict[str, str] = {}  # alias to the name of the value
        self.optimizers: Optimizers | None = None
        self.tables: dict[str, EmbeddingTable] = {}
        self.version = source.version if source else 0
        self._applied = source.watermarks.copy() if source else Watermarks()
        self._received = self._applied.copy()  # sync mode: also what waits
        self._waiting: list[_Waiting] = []  # for their quorum, in order of arrival
        self._seed = 0

    # ---- setting up ----

    @property
    def initialized(self) -> bool:
        """Whether a worker has sent the parameters."""
        return self.dense is not None

    def initialize(self, request: pb.PushDenseParametersRequest) -> bool:
        """Takes the dense parameters; False if an earlier worker sent them, with the same layout.

        Raises:
            UsageError: the parameters or the optimizer are invalid, or not the first worker's.
        """
        with self._setup:
            optimizers = Optimizers.from_proto(request.optimizer)
            dense = DenseShard(request.parameters, optimizers)
            if self.dense is not None and self.optimizers is not None:
                new, old = dense.layout(), self.dense.layout()
                if new != old:
                    raise UsageError(
                        "dense parameters: another layout than the first worker's; "
                        f"{_difference(new, old)}"
                    )
                if not optimizers.same(self.optimizers):
                    raise UsageError("optimizer: not the first worker's; use one model file")
                return False
            if self._source:
                dense.restore(*self._source.dense())
            self._seed = request.seed
            self.optimizers = optimizers
            self._aliases = {alias: p.name for p in request.parameters for alias in p.aliases}
            self.dense = dense
            return True

    def add_tables(self, infos: Sequence[pb.EmbeddingTableInfo]) -> None:
        """Creates the tables that do not exist; an existing table must have the same description.

        Raises:
            UsageError: the dense parameters have not come yet, or a table is invalid or differs.
        """
        with self._setup:
            if self.optimizers is None:
                raise UsageError("tables: send PushDenseParameters first, with the optimizer")
            for info in infos:
                there = self.tables.get(info.name)
                if there is None:
                    self.tables[info.name] = self._make(info, self.optimizers)
                elif not _alike(there.declared, info):
                    raise UsageError(
                        f"table {info.name}: not the first worker's; that one is "
                        f"{_line(there.declared)}, this one {_line(info)}"
                    )

    def _make(self, info: pb.EmbeddingTableInfo, optimizers: Optimizers) -> EmbeddingTable:
        if self._source is None:
            return EmbeddingTable(info, self._seed, optimizers)
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
            return (self._received if self._rules.sync else self._applied).offset(task_id)

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
        if request.range.task_id < 0 or request.retired_before < 0:
            raise UsageError(
                f"push of task {request.range.task_id}, retired_before {request.retired_before}: "
                "tasks count from 0"
            )
        if self._rules.sync:
            return self._push_sync(request)
        r = request.range
        with self._task_locks[r.task_id % _TASK_LOCKS]:
            with self._state:
                self._applied.retire(request.retired_before)
                if self._applied.has(r.task_id, r.first, r.last):
                    return pb.PushGradientsResponse(
                        accepted=True, duplicate=True, version=self.version
                    )
            self._apply(self._decode(request))
            with self._state:
                self._applied.advance(r.task_id, r.last)
                self.version += 1
                return pb.PushGradientsResponse(accepted=True, version=self.version)

    def _push_sync(self, request: pb.PushGradientsRequest) -> pb.PushGradientsResponse:
        r = request.range
        with self._sync:
            for watermarks in (self._applied, self._received):
                with self._state:
                    watermarks.retire(request.retired_before)
            if self._received.has(r.task_id, r.first, r.last):
                return pb.PushGradientsResponse(accepted=True, duplicate=True, version=self.version)
            if self.version - request.version > self._rules.staleness:
                return pb.PushGradientsResponse(accepted=False, version=self.version)
            self._waiting.append(_Waiting(r.task_id, r.last, self._decode(request)))
            with self._state:
                self._received.advance(r.task_id, r.last)
            if len(self._waiting) >= self._rules.grads_to_wait:
                self._apply_waiting()
            return pb.PushGradientsResponse(accepted=True, version=self.version)

    def flush(self) -> int:
        """Sync mode: applies what waits for its quorum; returns the version."""
        self._require_sound()
        with self._sync:
            self._apply_waiting()
            return self.version

    def _apply_waiting(self, wanted: Callable[[_Waiting], bool] = lambda _: True) -> None:
        taken = [waiting for waiting in self._waiting if wanted(waiting)]
        self._waiting = [waiting for waiting in self._waiting if not wanted(waiting)]
        if not taken:
            return
        assert self.dense is not None
        self._apply(mean([w.gradients for w in taken], self.dense.assigned))
        with self._state:
            for waiting in taken:
                self._applied.advance(waiting.task_id, waiting.last)
            self.version += 1

    def _decode(self, request: pb.PushGradientsRequest) -> Gradients:
        assert self.dense is not None
        assert self.optimizers is not None
        # The mean of pushes counts a parameter without a gradient as zero.
        return decode(
            request, self.dense, self.table, self.optimizers, zero_untouched=self._rules.sync
        )

    def _apply(self, gradients: Gradients) -> None:
        assert self.dense is not None
        assert self.optimizers is not None
        behind = 1
        if self._rules.learning_rate_by_staleness:
            behind = max(1, self.version - gradients.version)
        rates = self.optimizers.rates(gradients.rates, behind)
        try:
            if gradients.dense is not None:
                self.dense.apply(gradients.dense, rates, gradients.untouched)
            self.dense.assign_exact(gradients.exact)
            for table, ids, values in gradients.tables:
                table.apply(ids, values, rates)
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            log.critical("an update failed half-way", exc_info=True)
            self._on_fatal()
            raise

    def _require_sound(self) -> None:
        if self._broken:
            raise EdlError(f"this server stops: an update failed half-way ({self._broken})")

    # ---- snapshots: the caller keeps pushes out ----

    def has_received(self, targets: Watermarks) -> bool:
        """Whether every record of ``targets`` is applied here or waits for its quorum."""
        with self._state:
            return (self._received if self._rules.sync else self._applied).reached(targets)

    def cut(self, targets: Watermarks) -> Cut:
        """Freezes the state in which the records of ``targets`` are applied.

        In sync mode another server, whose quorum was made of other pushes, may have applied
        pushes that wait here: they are applied now.
        """
        assert self.dense is not None
        if self._rules.sync:
            with self._sync:
                self._apply_waiting(lambda w: w.last <= targets.offset(w.task_id))
        dense = self.dense.state()
        tables = [(t, t.step) for t in self.tables.values()]
        for table, _ in tables:
            table.core.begin_snapshot()
        dense.values.update({a: dense.values[name] for a, name in self._aliases.items()})
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
        f"min_count {info.min_count}, max_age {info.max_age}, rows start as {start} {args}"
    )


def _difference(new: Sequence[tuple[object, ...]], old: Sequence[tuple[object, ...]]) -> str:
    for ours, theirs in zip(old, new, strict=False):
        if ours != theirs:
            return f"here {ours}, there {theirs}"
    return f"here {len(old)} parameters, there {len(new)}"

"""The shard of the model that a server holds. A push is the only change of its values: it is
decoded, fully checked, and applied once.

With a log, each change is appended before it is made, one at a time; the caller acknowledges a
change once the log is durable. :mod:`.recovery` applies the same changes again, in the same order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.config import TrainConfig
from torch_edl.errors import EdlError, UsageError
from torch_edl.ps_server.disk_room import DiskRoom
from torch_edl.ps_server.durability import records
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.records import Kind, LogEntry
from torch_edl.ps_server.requests import (
    NO_GRADIENTS,
    Push,
    decode,
    mean,
    require_same_dense,
    require_same_table,
    split,
    table_named,
    without_values,
)
from torch_edl.tables.dense import Array, DenseShard
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable, Ids, apply_all
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import shard_state_pb2 as state_pb

_log = logging.getLogger(__name__)

_TASK_LOCKS = 64

Snapshots = tuple[Callable[[], dict[str, Array]], list[tuple[EmbeddingTable, int]]]
"""Snapshots that have begun: a function that returns the dense values, and tables with their
steps; the first two arguments of :func:`~torch_edl.checkpoint.tensor_files.write_shard`."""


class ModelShard:
    """Dense parameters, tables, version and watermarks.

    Args:
        rules: how pushes become updates.
        source: checkpoint or exported model to restore; None: the first worker sends the values.
        on_fatal: called when an update failed half-way. The model then contains a part of a push,
            which no retry can repair: the process has to end and be restored.
        shards: number of servers, which share the bounds of the tables.
        log: log of the changes; None for no log.
    """

    def __init__(
        self,
        rules: TrainConfig,
        source: CheckpointReader | None,
        on_fatal: Callable[[], None],
        shards: int = 1,
        log: ChangeLog | None = None,
    ) -> None:
        self._rules = rules
        self.shards = shards
        self._is_sync = rules.mode == "sync"
        self._source = source
        self._on_fatal = on_fatal
        self._log = log
        self.broken = ""
        """Error of the update that failed half-way; empty if none did."""
        # The lock of a task covers check, update and watermark of one push. In sync mode, or with a
        # log, one lock covers all pushes. `_state` guards the fields below, only briefly.
        locks = range(1 if self._is_sync or log else _TASK_LOCKS)
        self._task_locks = [threading.Lock() for _ in locks]
        self._state = threading.Lock()
        self._setup = threading.Lock()
        self.dense: DenseShard | None = None
        self.tables: dict[str, EmbeddingTable] = {}
        self.version = source.version if source else 0
        self._applied = source.watermarks.copy() if source else Watermarks()
        # Sync mode: includes waiting pushes.
        self._received = self._applied.copy() if self._is_sync else self._applied
        self._waiting: list[Push] = []  # sync mode: for their quorum, in order of arrival
        self._description = pb.PushDenseParametersRequest()
        self._restored = source is not None
        self._tables_told = False
        self.room = DiskRoom()
        self.lost = 0
        """Number of damaged records of the log that were left out. With losses, a push may leave a
        gap: records that were acknowledged and are lost here."""

    # ---- setting up ----

    def initialize(self, request: pb.PushDenseParametersRequest, frames: codec.Frames = ()) -> bool:
        """Set the dense parameters. False if an earlier worker has sent the same.

        Raises:
            UsageError: the parameters or the optimizer are invalid, or differ from the first
                worker's.
            OSError: the log has no room; nothing has changed.
        """
        dense = DenseShard(request.parameters, Optimizers.from_proto(request.optimizer), frames)
        with self._setup:
            if self.dense is not None:
                require_same_dense(dense, self.dense)
                return False
            if self._source:
                dense.restore(self._source.dense())
            with self._task_locks[0]:
                self._append(self._entry(Kind.DENSE, request.SerializeToString, *frames))
                self._description = without_values(request)
                self.dense = dense
        return True

    def add_tables(self, request: pb.PushEmbeddingTableInfosRequest) -> None:
        """Create missing tables; an existing table must have the same description.

        Raises:
            UsageError: there are no dense parameters yet, or a table is invalid or differs.
            OSError: see :meth:`initialize`.
        """
        with self._setup:
            if self.dense is None:
                raise UsageError("tables: send PushDenseParameters first, with the optimizer")
            new: dict[str, EmbeddingTable] = {}
            for info in request.infos:
                there = self.tables.get(info.name) or new.get(info.name)
                if there is None:
                    new[info.name] = self._make(info, self.dense.optimizers)
                else:
                    require_same_table(info, there.declared)
            if new:
                with self._task_locks[0]:
                    self._append(self._entry(Kind.TABLES, request.SerializeToString))
                    self.tables.update(new)
            self._tables_told = True

    def _make(self, info: pb.EmbeddingTableInfo, optimizers: Optimizers) -> EmbeddingTable:
        if self._source is None:
            if self._restored:
                raise UsageError(f"table {info.name}: not in the saved model")
            seed = self._description.seed
            return EmbeddingTable(info, seed, optimizers, shards=self.shards)
        table = self._source.restore_table(info, optimizers)
        _log.info("table %s: %d rows restored", info.name, table.core.size)
        return table

    # ---- reading and changing ----

    def table(self, name: str) -> EmbeddingTable:
        """Return the table of that name; raise UsageError if there is none."""
        self._require_sound()
        return table_named(name, self.tables)

    def watermarks(self, *, received: bool = False) -> Watermarks:
        """Return a copy of the watermarks of applied pushes, or, in sync mode, of received ones."""
        with self._state:
            return (self._received if received else self._applied).copy()

    def push(
        self, request: pb.PushGradientsRequest, frames: codec.Frames = (), *, lent: bool = False
    ) -> pb.PushGradientsResponse:
        """Apply a push unless it is a duplicate; in sync mode, store it for its quorum.

        Args:
            lent: the frames are memory of the worker, which changes after the answer.

        Raises:
            UsageError, OSError: the push is rejected, or has no room; nothing has changed.
        """
        self._require_sound()
        if self.dense is None:
            raise UsageError("push: this server was not initialised; send its parameters first")
        answer = self._answer_without_change(Push.of(request, NO_GRADIENTS, frames))
        if answer is None:
            if lent and self.keeps_pushes:
                frames = [memoryview(bytes(frame)) for frame in frames]
            gradients = decode(request, self.dense, self.tables, frames, for_mean=self._is_sync)
            answer = self.apply(Push.of(request, gradients, frames))
        return answer

    @property
    def keeps_pushes(self) -> bool:
        """True if a push may be needed after its answer: by the quorum, or by the peer."""
        return self._is_sync or (self._log is not None and self._log.place.is_slow)

    def apply(self, push: Push) -> pb.PushGradientsResponse:
        """Apply a push whose content was checked; see :meth:`push`."""
        self._require_sound()
        answer = self._answer_without_change(push)
        if answer is None:
            self.room.prepare(push.gradients)
            entry = self._entry(Kind.GRADIENTS, push.encoded, *push.frames)
            with self._task_locks[push.task_id % len(self._task_locks)]:
                answer = self._answer_without_change(push)
                if answer is None:
                    self._append(entry)
                    self._take(push)
                    self._tables_told = True  # a worker describes its tables before it pushes
                    answer = pb.PushGradientsResponse(accepted=True, version=self.version)
        return answer

    def _answer_without_change(self, push: Push) -> pb.PushGradientsResponse | None:
        """Return the answer to a duplicate or stale push; None if the push is to be applied."""
        task, first, last = push.task_id, push.first, push.last
        with self._state:
            beyond = self.lost and self._received.offset(task) < first < last
            if task < push.retired_before or not (
                beyond or not self._received.has(task, first, last)
            ):
                return pb.PushGradientsResponse(accepted=True, duplicate=True, version=self.version)
            if self._is_sync and self.version - push.version > self._rules.staleness:
                return pb.PushGradientsResponse(accepted=False, version=self.version)
        return None

    def _take(self, push: Push) -> None:
        with self._state:
            self._applied.retire(push.retired_before)
            self._received.retire(push.retired_before)
        if not self._is_sync:
            self._update((push,))
            return
        self._waiting.append(push)
        with self._state:
            self._received.advance(push.task_id, push.last)
        if len(self._waiting) >= self._rules.grads_to_wait:
            self.apply_waiting()

    def flush(self) -> int:
        """Apply the waiting pushes (sync mode). Returns the version. Raises like :meth:`push`."""
        self._require_sound()
        with self._task_locks[0]:
            if self._waiting:
                self._append(self._entry(Kind.FLUSH, pb.FlushRequest().SerializeToString))
                self.apply_waiting()
            return self.version

    def apply_waiting(self, targets: Watermarks | None = None) -> None:
        """Apply the mean of the waiting pushes, or of those within ``targets``."""
        taken, self._waiting = split(self._waiting, targets)
        if taken:
            self._update(taken)

    def _update(self, pushes: Sequence[Push]) -> None:
        """Make one update with the mean of pushes."""
        assert self.dense is not None
        gradients = mean([push.gradients for push in pushes], self.dense.assigned)
        rates = gradients.rates or self.dense.optimizers.own_rates
        try:
            if gradients.dense is not None:
                self.dense.apply(gradients.dense, rates, gradients.untouched)
            self.dense.assign_exact(gradients.exact)
            evict = not self._is_replay
            removed = apply_all(gradients.tables, rates, evict=evict)
            if evict:
                for (table, _, _), ids in zip(gradients.tables, removed, strict=True):
                    self._note_eviction(table, ids)
        except BaseException as error:
            self.broken = f"{type(error).__name__}: {error}"
            _log.critical("an update failed half-way", exc_info=True)
            self._on_fatal()
            raise
        with self._state:
            for push in pushes:
                self._applied.advance(push.task_id, push.last)
            self.version += 1

    # ---- the log ----

    @property
    def _is_replay(self) -> bool:
        """True while records of an earlier server are read from the log and applied again."""
        return self._log is not None and not self._log.is_open

    def _entry(self, kind: int, head: Callable[[], bytes], *frames: memoryview) -> LogEntry | None:
        """Return the argument of :meth:`_append`; None if nothing is appended. A push calls it
        without a lock, since the checksum takes time."""
        if self._log is None or self._is_replay:
            return None
        return LogEntry.of(kind, head(), frames)

    def _append(self, entry: LogEntry | None) -> None:
        """Append a change to the log before it is made, with the lock of all changes held."""
        if self._log is not None and entry is not None:
            self._log.append(entry)

    def _note_eviction(self, table: EmbeddingTable, ids: Ids) -> None:
        """Log removed rows by their ids, since pulls, which are not logged, decide on them too."""
        table.evicted += len(ids)
        if self._log is not None and len(ids):
            message = pb.TableIds(name=table.name, ids=ids.astype("<i8").tobytes())
            self._log.append_before_next(LogEntry.of(Kind.EVICTION, message.SerializeToString()))

    def _require_sound(self) -> None:
        if self.broken:
            raise EdlError(f"this server stops: an update failed half-way ({self.broken})")

    # ---- snapshots: the caller keeps pushes out ----

    def has_received(self, targets: Watermarks, acknowledged: Watermarks) -> bool:
        """Return whether every record of ``targets`` is applied, waits for its quorum, or is lost.

        Args:
            acknowledged: watermarks of the pushes that all servers acknowledged. If this server has
                lost updates, the records up to these watermarks count as lost and are not awaited.
        """
        with self._state:
            lost = [acknowledged] if self.lost else []
            return Watermarks.union([self._received, *lost]).reached(targets)

    def cut(self, targets: Watermarks) -> tuple[int, Snapshots]:
        """Freeze the state in which the records of ``targets`` are applied, for a checkpoint.

        In sync mode, another server may have applied pushes that still wait here, since its quorum
        had other pushes; they are applied now.

        Returns:
            The version, and snapshots of the values.

        Raises:
            OSError: the log has no room; nothing has changed.
        """
        assert self.dense is not None
        if self._is_sync:
            with self._task_locks[0]:
                if split(self._waiting, targets)[0]:
                    self._append(self._entry(Kind.CUT, targets.to_proto().SerializeToString))
                    self.apply_waiting(targets)
        return self.version, self._begin_snapshots()

    def _begin_snapshots(self) -> Snapshots:
        assert self.dense is not None
        tables = [(table, table.step) for table in self.tables.values()]
        for table, _ in tables:
            table.core.begin_snapshot()
        return self.dense.begin_snapshot(), tables

    # ---- snapshots for the log ----

    @property
    def is_described(self) -> bool:
        """True once a worker has described the model. Before, restored tables may have rows that
        the model does not use."""
        return self.dense is not None and (self._source is None or self._tables_told)

    @property
    def needs_source(self) -> bool:
        """True if a successor has to read the checkpoint that this shard was restored from."""
        return self._source is not None and self.dense is not None

    def freeze(self, rotate: Callable[[], int]) -> tuple[int, state_pb.ShardState, Snapshots]:
        """Freeze the state between two records, in microseconds.

        Args:
            rotate: called at that moment; returns the number of the last record.

        Returns:
            The number of the record, the state, and snapshots of the values.
        """
        with self._task_locks[0]:
            sequence = rotate()
            begun = self._begin_snapshots()
            waiting = list(self._waiting)
            with self._state:
                state = state_pb.ShardState(
                    dense=self._description,
                    version=self.version,
                    restored=self._restored,
                    lost=self.lost,
                    applied=self._applied.to_proto(),
                    received=self._received.to_proto(),
                )
        for table, step in begun[1]:
            state.tables.add(info=table.info, declared=table.declared, seed=table.seed, step=step)
        for push in waiting:
            entry = LogEntry.of(Kind.GRADIENTS, push.encoded(), push.frames)
            state.waiting.append(records.pack(sequence, entry))
        return sequence, state, begun

    def thaw(
        self, state: state_pb.ShardState, dense: DenseShard, tables: Mapping[str, EmbeddingTable]
    ) -> None:
        """Restore a state that :meth:`freeze` returned, in a shard that is not in use yet."""
        self._source, self._restored, self.lost = None, state.restored, state.lost
        self._description = without_values(state.dense)
        self.dense, self.tables, self.version = dense, dict(tables), state.version
        self._applied = Watermarks.from_proto(state.applied)
        self._received = Watermarks.from_proto(state.received) if self._is_sync else self._applied
        for record in records.read(state.waiting):
            message, frames = record.parts()
            request = pb.PushGradientsRequest.FromString(message)
            gradients = decode(request, dense, self.tables, frames, for_mean=self._is_sync)
            self._waiting.append(Push.of(request, gradients, frames))

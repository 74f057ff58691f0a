"""The RPCs of a parameter server: check the fence, decode, act, encode."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from torch_edl import _core
from torch_edl.checkpoint import tensor_files
from torch_edl.errors import StaleIncarnationError, UsageError
from torch_edl.ps_server.counts import CallCounts
from torch_edl.ps_server.durability.keeper import ReplicaKeeper
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.push_barrier import PushBarrier
from torch_edl.ps_server.requests import Push
from torch_edl.ps_server.shard import ModelShard
from torch_edl.ps_server.snapshots import Compactor
from torch_edl.ps_server.steady_state import SteadyState
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.server import Answer, Later, WouldWaitError, in_pool
from torch_edl.wire.data_plane.sockets import MAX_FRAME_BYTES, PIECE_BYTES, Keys
from torch_edl.wire.server import Handler

_log = logging.getLogger(__name__)

# Upper bound of a hold, during which all workers wait.
_LONGEST_HOLD_MS = 600_000
_FIRST_SNAPSHOT_S = 5.0  # wait of a checkpoint for the log's first snapshot
_PAGE_BYTES = 16 << 20  # bytes of rows in one answer


class PserverService:
    """Answers RPCs for one shard, and compacts its log by snapshots.

    Args:
        fence: fence that every call must carry.
        stem: prefix of the names of this shard's files.
        keeper: keeper of the copy of another shard.
    """

    def __init__(
        self,
        shard: ModelShard,
        *,
        fence: pb.Fence,
        stem: str,
        log: ChangeLog | None = None,
        keeper: ReplicaKeeper | None = None,
    ) -> None:
        self._shard = shard
        self._fence = fence
        self._stem = stem
        self._log = log
        self._keeper = keeper
        self.counts = CallCounts(shard, log)
        self._barrier = PushBarrier()
        self._compactor = Compactor(shard, log, self._barrier.is_held) if log else None
        self._snapshots = self._compactor.lock if self._compactor else threading.Lock()

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by name of the method."""
        answers: dict[str, Callable[[Any], Any]] = {
            "PushEmbeddingTableInfos": self._push_embedding_table_infos,
            "Snapshot": self._snapshot,
            "Flush": self._flush,
            "GetWatermarks": self._get_watermarks,
            "Hold": self._hold,
            "Release": self._release,
            **(self._keeper.answers() if self._keeper else {}),
        }
        return {
            **{name: self._fenced(answer) for name, answer in answers.items()},
            "Status": self._status,
        }

    def data_answers(self) -> dict[str, Answer]:
        """Return the answers of the data plane by field of a DataRequest."""
        answers: dict[str, Answer] = {
            "pull": self.counts.timed(self._pull, "pull"),
            "push_gradients": self.counts.timed(self._push_gradients, "push_gradients"),
            "push_dense_parameters": in_pool(self._push_dense_parameters),
            "read_rows": in_pool(self._read_rows),
            **(self._keeper.data_answers() if self._keeper else {}),
        }
        return {name: self._fenced_data(answer) for name, answer in answers.items()}

    def close(self) -> None:
        """Reject new pushes and those that wait."""
        self._barrier.close()
        if self._compactor:
            self._compactor.close()

    def _fenced(self, answer: Callable[[Any], Any]) -> Handler:
        """Return a handler that rejects calls for another job or incarnation."""

        def handle(request: Any, _: grpc.ServicerContext) -> Any:
            self._require_fence(request.fence)
            return answer(request)

        return handle

    def _fenced_data(self, answer: Answer) -> Answer:
        def handle(given: Framed, may_wait: bool) -> Framed | Later:
            self._require_fence(given.message.fence)
            return answer(given, may_wait)

        return handle

    def _require_fence(self, given: pb.Fence) -> None:
        own = self._fence
        if given != own:
            raise StaleIncarnationError(
                f"call for job {given.job!r}, incarnation {given.incarnation}: this server is of "
                f"{own.job!r}, incarnation {own.incarnation}; ask the master for the servers"
            )

    def _push_dense_parameters(self, given: Framed) -> Framed:
        accepted = self._shard.initialize(given.message, given.frames)
        self._wait_durable()
        dense = self._shard.dense
        assert dense is not None
        return Framed(
            pb.PushDenseParametersResponse(
                accepted=accepted, version=self._shard.version, exact=dense.exact_to_proto()
            )
        )

    def _push_embedding_table_infos(
        self, request: pb.PushEmbeddingTableInfosRequest
    ) -> pb.PushEmbeddingTableInfosResponse:
        with self._shard.room.noting():
            self._shard.add_tables(request)
        self._wait_durable()
        return pb.PushEmbeddingTableInfosResponse()

    def _pull(self, given: Framed, may_wait: bool) -> Framed:
        """Answer a pull, with the rows in frames of their own."""
        shard, request = self._shard, given.message
        self._require_pool(may_wait)
        if shard.dense is None:
            return Framed(pb.PullResponse(initialized=False))
        # Read before the parameters: they may be newer than the version, but never older.
        version = shard.version
        dtype = request.row_dtype or tensor.DT_FLOAT
        answer = Framed(pb.PullResponse(initialized=True, version=version))
        ids: list[bytes | memoryview] = []
        for entry in request.tables:
            ids.append(codec.entry_ids(entry, ids, given.frames))
        tables = [shard.table(entry.name).core for entry in request.tables]
        if request.dense and request.dense_version != version:
            answer.put(answer.message.dense, shard.dense.copy(given.room))
        try:
            lookups, name = list(zip(tables, ids, strict=True)), codec.float_name(dtype)
            rest = given.room.rest if given.room else None
            for rows in _core.pull_tables(lookups, name, request.read_only, rest):
                answer.put_narrow(answer.message.vectors.add(), rows, dtype)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return answer

    def _push_gradients(self, given: Framed, may_wait: bool) -> Framed | Later:
        request: pb.PushGradientsRequest = given.message
        self._require_pool(may_wait)

        def push() -> pb.PushGradientsResponse:
            return self._shard.push(request, given.frames, lent=given.lent)

        r = request.range
        answer, wait = self._change(r.task_id, r.last, request.version, push, may_wait=may_wait)
        return Framed(answer) if wait is None else Later(Framed(answer), wait)

    def _change(
        self,
        task_id: int,
        last: int,
        version: int,
        push: Callable[[], pb.PushGradientsResponse],
        *,
        may_wait: bool,
    ) -> tuple[pb.PushGradientsResponse, Callable[[], None] | None]:
        """Apply a push inside the barrier, until it is durable.

        Args:
            version: version of the parameters that the gradients were computed with.

        Returns:
            The answer, and a function that waits until the push is durable, if that takes long.
        """
        wait: Callable[[], None] | None = None
        self._barrier.enter(task_id, last, may_wait=may_wait)
        try:
            self.counts.pushed(self._shard.version - version)
            answer = push()
            if self._log is not None and self._log.place.is_slow:
                wait = self._leave_durable
            else:
                self._wait_durable()
            return answer, wait
        finally:
            if wait is None:
                self._barrier.leave()

    def _leave_durable(self) -> None:
        """Leave the barrier once all changes so far may be acknowledged."""
        try:
            self._wait_durable()
        finally:
            self._barrier.leave()

    def steady_state(self, token: str, *, is_local: bool) -> SteadyState:
        """Return the answers to the usual pulls and pushes.

        Args:
            is_local: the data plane is a Unix socket, which needs no cut frames.
        """
        pieces = MAX_FRAME_BYTES + 1 if is_local else PIECE_BYTES

        def change(push: Push) -> tuple[pb.PushGradientsResponse, Callable[[], None] | None]:
            apply = partial(self._shard.apply, push)
            return self._change(push.task_id, push.last, push.version, apply, may_wait=False)

        key, logs = Keys.of(token).request, self._log is not None
        return SteadyState(self._shard, self._fence, key, pieces, change, logs=logs)

    def _require_pool(self, may_wait: bool) -> None:
        """Raise WouldWaitError in the thread that receives, if a table is on a disk."""
        tables = list(self._shard.tables.values())
        if not may_wait and any(table.on_disk for table in tables):
            raise WouldWaitError

    def _wait_durable(self) -> None:
        """Wait until all changes so far may be acknowledged."""
        if self._log is not None:
            with self.counts.committing():
                self._log.wait_durable()

    def _read_rows(self, given: Framed) -> Framed:
        request: pb.ReadRowsRequest = given.message
        table = self._shard.table(request.name)
        try:
            ids, vectors, cursor = table.core.scan(
                request.cursor, max(1, _PAGE_BYTES // (4 * table.dim + 8))
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        answer = Framed(pb.ReadRowsResponse(cursor=cursor))
        answer.put(answer.message.ids, ids)
        answer.put(answer.message.vectors, vectors)
        return answer

    def _get_watermarks(self, request: pb.GetWatermarksRequest) -> pb.GetWatermarksResponse:
        received = self._shard.watermarks(received=True)
        self._wait_durable()  # the records up to an offset are not sent again
        return pb.GetWatermarksResponse(offsets=map(received.offset, request.task_ids))

    def _hold(self, request: pb.HoldRequest) -> pb.HoldResponse:
        if not 0 < request.timeout_ms <= _LONGEST_HOLD_MS:
            raise UsageError(f"timeout_ms {request.timeout_ms}: expected 1 to {_LONGEST_HOLD_MS}")
        if not self._shard.is_described:
            return pb.HoldResponse(initialized=False)
        if self._compactor:
            self._compactor.give_way(min(request.timeout_ms / 1000, _FIRST_SNAPSHOT_S))
        self._barrier.hold(request.timeout_ms / 1000, move=request.move)
        # A move includes acknowledged pushes that still wait for their quorum, since tasks resume
        # after them.
        watermarks = self._shard.watermarks(received=request.move > 0)
        return pb.HoldResponse(initialized=True, watermarks=watermarks.to_proto())

    def _snapshot(self, request: pb.SnapshotRequest) -> pb.SnapshotResponse:
        targets = Watermarks.from_proto(request.targets)
        acknowledged = Watermarks.from_proto(request.acknowledged)
        directory = Path(request.directory)
        if not directory.is_dir():
            raise UsageError(f"{directory}: no such folder; create it before the snapshot")
        shard = self._shard
        with self._snapshots:
            with self._barrier.cut(
                targets, lambda: shard.has_received(targets, acknowledged), move=request.move
            ) as elapsed:
                version, begun = shard.cut(targets)
                stall_s = elapsed()
            sizes = tensor_files.write_shard(*begun, directory, self._stem)
        _log.info(
            "snapshot of version %d: %d files, pushes stalled %.1f ms",
            version,
            len(sizes),
            stall_s * 1000,
        )
        snapshot = pb.Snapshot(files=sizes, version=version)
        return pb.SnapshotResponse(snapshot=snapshot, stall_ms=stall_s * 1000)

    def _release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        self._barrier.release(move=request.move)
        return pb.ReleaseResponse()

    def _flush(self, _request: pb.FlushRequest) -> pb.FlushResponse:
        with self._barrier.passing():
            version = self._shard.flush()
            self._wait_durable()
            return pb.FlushResponse(version=version)

    def _status(
        self, _request: pb.PserverStatusRequest, _: grpc.ServicerContext
    ) -> pb.PserverStatusResponse:
        return pb.PserverStatusResponse(
            version=self._shard.version,
            rows={t.name: t.core.size for t in list(self._shard.tables.values())},
        )

"""Answers to the pulls and pushes of the steady state, decoded and encoded by the compiled core.

A call that is unusual in any way is left to :mod:`.service`, which makes the same answers step by
step, and has the messages of all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_edl import _core
from torch_edl.ps_server.requests import Gradients, Push
from torch_edl.ps_server.shard import ModelShard
from torch_edl.wire import data_plane_pb2 as data
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.data_plane.server import Quick
from torch_edl.wire.data_plane.sockets import MAX_CALL_BYTES

Change = Callable[[Push], tuple[pb.PushGradientsResponse, Callable[[], None] | None]]


class SteadyState:
    """Answers the usual calls to a shard.

    Args:
        key: key in each request.
        piece_bytes: size from which a frame is cut into pieces.
        change: applies a push. Returns the answer, and a function that waits until the answer may
            be sent, if it has to wait. Raises an exception before any change if the push cannot be
            applied now.
        logs: the shard logs its changes.
    """

    def __init__(
        self,
        shard: ModelShard,
        fence: pb.Fence,
        key: bytes,
        piece_bytes: int,
        change: Change,
        *,
        logs: bool,
    ) -> None:
        self._shard = shard
        self._change = change
        self._logs = logs
        self._arguments = fence.job, fence.incarnation, key, piece_bytes
        self._calls = _core.ShardCalls(*self._arguments)
        self._known: tuple[Any, int] = (None, 0)
        self._reads_disk = False

    def answer(
        self, pieces: Sequence[Any], memory: _core.SharedMemory | None, most_bytes: int
    ) -> Quick | None:
        """Answer a call; None for an unusual call, which has changed nothing.

        Args:
            pieces: the received frames.
            memory: memory that the sender shares.
            most_bytes: size of the frames of a call above which the call is unusual.
        """
        dense, shard = self._shard.dense, self._shard
        if dense is None or shard.broken:
            return None
        if self._known != (dense, len(shard.tables)):
            self._learn()
        calls = self._calls
        if self._reads_disk and most_bytes < MAX_CALL_BYTES:  # in the thread that receives
            return None
        call = calls.open(pieces, memory, most_bytes)
        if call is None:
            return None
        if not call.is_pull:
            return self._push(calls, call)
        # Read before the parameters: they may be newer than the version, but never older.
        version = shard.version
        if not dense.lock.acquire(blocking=False):
            return None
        held = [dense.lock]
        try:
            content = calls.answer_pull(call, version, dense.flat, lambda: held.pop().release())
        finally:
            for lock in held:
                lock.release()
        return None if content is None else Quick(0, "pull", content, None)

    def _learn(self) -> None:
        """Learn the layout of the shard."""
        dense, tables = self._shard.dense, dict(self._shard.tables)
        assert dense is not None
        calls = _core.ShardCalls(*self._arguments)
        groups = len(dense.optimizers.rates([]))
        calls.set_dense(dense.flat.size, dense.trained, groups)
        for name, table in tables.items():
            calls.add_table(name, table, table.core)
        self._reads_disk = any(table.on_disk for table in tables.values())
        self._calls = calls  # complete: other threads use it
        self._known = dense, len(tables)

    def _push(self, calls: _core.ShardCalls, call: _core.ShardCall) -> Quick | None:
        found = calls.decode_push(call)
        if found is None:
            return None
        number, range_, version, retired_before, rates, dense, tables, message, lent = found
        if lent and self._shard.keeps_pushes:
            return None
        gradients = Gradients(dense, tables, rates)
        frames = call.frames() if self._logs else []
        push = Push(*range_, version, retired_before, gradients, message, frames)
        answer, wait = self._change(push)
        content = [data.DataAnswer(call=number, push_gradients=answer).SerializeToString()]
        return Quick(number, "push_gradients", content, wait)

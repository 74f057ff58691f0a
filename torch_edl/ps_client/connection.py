"""Connection to one shard of the model, independent of the process that serves the shard.

If a server does not answer a call, the call waits until the master names a new server of the shard,
or the same server again, and is repeated there with the fence of that server. The caller does not
notice that a server was lost. Every call may be sent twice: see docs/protocol.md.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from torch_edl.errors import EdlError, ServersLostError, ServersReplacedError, UsageError
from torch_edl.ps_client.calls import CompiledCall
from torch_edl.wire import cluster_pb2, codec, services, tensor_pb2
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.channel import FULL, FULL_RETRY_S
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.pserver_stub import PserverStub
from torch_edl.wire.data_plane.stub import DataCall, ReceivedPull

log = logging.getLogger(__name__)

Resolve = Callable[[int, int], cluster_pb2.Cluster]
"""``resolve(shard, incarnation)`` waits some seconds for a later server of the shard than the one
with this incarnation, and returns the current servers; an empty cluster if there are none. Raises
ServersLostError if the master does not answer."""

# Status of a call whose server is lost, replaced, stopping, or not answering.
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_CLOSED = "the connection was closed"
# Time for which a server may not answer although the master lists it as running.
_UNREACHABLE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """The answer of a server."""

    received: Framed | ReceivedPull
    incarnation: int
    """Incarnation of the server; versions and cursors of the answer are valid for it only."""

    @property
    def message(self) -> Any:
        """The message, without the contents of its large tensors."""
        return self.received.message

    def array(self, proto: tensor_pb2.TensorProto) -> codec.Array:
        """Decode a tensor of the message, see :func:`codec.from_proto`."""
        return codec.from_proto(proto, self.received.frames)

    def floats(self, proto: tensor_pb2.TensorProto) -> npt.NDArray[np.float32]:
        """Decode a tensor of the message, see :func:`codec.floats`."""
        return codec.floats(proto, self.received.frames)


class Call:
    """A call in flight. Errors are those of :meth:`Pending.wait`.

    Args:
        sent: the first attempt; None if the call is made by the connection's thread.
        incarnation: incarnation of the server that received the first attempt.
        queue: function that lets the connection's thread make the call, after a failed attempt.
    """

    def __init__(
        self, sent: DataCall | None, incarnation: int, queue: Callable[[], Future[Answer]]
    ) -> None:
        self._sent, self._incarnation, self._queue = sent, incarnation, queue
        self._answer: Answer | None = None
        self._queued = queue() if sent is None else None

    def done(self) -> bool:
        """Return True if :meth:`result` does not block."""
        if self._sent is not None and self._sent.done():
            self.settle()
        return self._answer is not None or (self._queued is not None and self._queued.done())

    def settle(self) -> None:
        """Wait for the end of the first attempt."""
        if self._sent is None:
            return
        try:
            answer = self._sent.result()
        except grpc.RpcError:
            self._queued = self._queue()
        else:
            self._answer = Answer(answer, self._incarnation)
        self._sent = None

    def result(self) -> Answer:
        """Wait for the answer and return it."""
        self.settle()
        if self._answer is None:
            assert self._queued is not None
            return self._queued.result()
        return self._answer


class ShardConnection:
    """Calls the server of one shard. Calls are sent in order; a repeated call may come later.

    A call with frames is sent at once, and the thread that waits for its answer receives it. All
    other calls, and calls without an answer, are made one by one in a thread of the connection.

    Args:
        model: incarnation of the model; calls fail if the model has another one.
        resolve: finds the current server; None to fail a call instead of repeating it.
    """

    def __init__(
        self,
        shard: int,
        server: cluster_pb2.Server,
        *,
        job: str,
        token: str,
        model: int,
        resolve: Resolve | None,
    ) -> None:
        self._shard, self._job, self._token, self._model = shard, job, token, model
        self._resolve = resolve
        self._lock = threading.Lock()  # of the fields below
        self._server = server
        self._stub = PserverStub(services.PSERVER, server, token)
        self._closed: type[ServersLostError] | None = None
        # Own thread: grpc's futures start a thread for each call, which costs more than the call.
        self._calls = ThreadPoolExecutor(1, thread_name_prefix=f"shard-{shard}")
        self._queued = 0  # number of calls queued for that thread

    @property
    def incarnation(self) -> int:
        """Incarnation of the server that receives calls now."""
        return self._server.incarnation

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """Return memory (size,) for a frame of a push, shared with the server if possible."""
        return self._stub.allocate(size)

    def call(self, request: Any, *, timeout_s: float, known: int = -1) -> Call:
        """Start a call.

        Args:
            timeout_s: deadline of each attempt in seconds.
            known: incarnation of the server to whose state the request refers (by a version or a
                cursor). The reference is removed for any other server.
        """
        with self._lock:
            server, stub, is_idle = self._server, self._stub, not self._queued
        sent = None
        if is_idle and isinstance(request, CompiledCall | Framed):
            _address(request, self._job, server.incarnation, known)
            sent = stub.start(request, timeout_s=timeout_s)
        queue = partial(self._queue, request, timeout_s, known)
        return Call(sent, server.incarnation, queue)

    def _queue(self, request: Any, timeout_s: float, known: int) -> Future[Answer]:
        """Queue a call for the connection's thread."""
        with self._lock:
            self._queued += 1
        try:
            call = self._calls.submit(self._answered, request, timeout_s, known)
        except RuntimeError:  # another thread has called close()
            call = Future()
            assert self._closed is not None
            call.set_exception(self._closed(_CLOSED))
        call.add_done_callback(self._left_queue)
        return call

    def _left_queue(self, _: Future[Answer]) -> None:
        with self._lock:
            self._queued -= 1

    def moved(self, server: cluster_pb2.Server) -> None:
        """Switch to a new server from the master; a call that waits for the old one is repeated."""
        with self._lock:
            if self._closed or not server.address:
                return
            if server.incarnation <= self._server.incarnation:
                return
            log.warning("shard %d: now on %s", self._shard, server.address)
            self._stub.close()
            self._server = server
            self._stub = PserverStub(services.PSERVER, server, self._token)

    def close(self, error: type[ServersLostError] = ServersLostError) -> None:
        """Close the connection; calls in flight and queued calls raise ``error``."""
        with self._lock:
            self._closed = self._closed or error
            self._stub.close()
        self._calls.shutdown(wait=False)  # queued calls end as soon as they start

    def _answered(self, request: Any, timeout_s: float, known: int) -> Answer:
        give_up, told = 0.0, False
        if isinstance(request, CompiledCall):
            request = request.framed()
        while True:
            self._require_open()
            with self._lock:
                server, stub = self._server, self._stub
            _address(request, self._job, server.incarnation, known)
            try:
                answer = stub.call(request, timeout_s=timeout_s)
                return Answer(answer, server.incarnation)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
            except UsageError:
                raise
            except ValueError:  # raised by grpc if the channel was closed before the call
                code, details = grpc.StatusCode.CANCELLED, "the connection was closed"
            if code is grpc.StatusCode.INVALID_ARGUMENT:
                raise UsageError(details)
            if code is FULL:
                if not told:
                    log.warning("shard %d: %s: waiting until there is room", self._shard, details)
                told = True
                self._require_open()
                time.sleep(FULL_RETRY_S)
                continue
            if code not in _LOST:
                raise EdlError(f"parameter server: {code.name}: {details}")
            failure = f"shard {self._shard}: {code.name}: {details}"
            now = time.monotonic()
            give_up = give_up or now + _UNREACHABLE_S
            if now >= give_up:
                raise ServersLostError(failure)
            if self._find(server, failure) is None:
                give_up = 0.0  # the master is starting another server

    def _find(self, failed: cluster_pb2.Server, failure: str) -> cluster_pb2.Server | None:
        """Wait some seconds for a server of the shard; None if one is being started.

        Raises:
            ServersLostError: no server will have this incarnation of the model.
        """
        self._require_open()
        with self._lock:
            if self._server is not failed:
                return self._server
        if self._resolve is None:
            raise ServersLostError(failure)
        log.info("%s; asking the master", failure)
        cluster = self._resolve(self._shard, failed.incarnation)
        self._require_open()
        if cluster.incarnation != self._model or self._shard >= len(cluster.servers):
            raise ServersReplacedError(f"{failure}; the model is of another incarnation now")
        server = cluster.servers[self._shard]
        self.moved(server)
        return server if server.address else None

    def _require_open(self) -> None:
        if self._closed is not None:
            raise self._closed(_CLOSED)


def _address(request: Any, job: str, incarnation: int, known: int) -> None:
    """Set the fence of a request; remove references to the state of another server."""
    if isinstance(request, CompiledCall):
        request.address(job, incarnation, known)
        return
    if isinstance(request, Framed):
        request = request.message
    with contextlib.suppress(AttributeError):  # a status request has no fence
        request.fence.job, request.fence.incarnation = job, incarnation
    if incarnation == known:
        return
    if isinstance(request, pb.PullRequest):
        request.dense_version = -1
    elif isinstance(request, pb.ReadRowsRequest):
        request.cursor = 0

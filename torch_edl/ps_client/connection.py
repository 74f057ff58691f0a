"""One shard of the model, whichever process serves it.

A call that its server did not answer waits until the master names another server of the shard, or
the same one again, and is sent to that one behind its fence. So whoever called does not notice that
a server died. Every call may be sent twice: see docs/protocol.md.
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
from torch_edl.wire import cluster_pb2, codec, services, tensor_pb2
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.channel import FULL, FULL_RETRY_S
from torch_edl.wire.data_stub import DataCall
from torch_edl.wire.framed import Framed
from torch_edl.wire.pserver_stub import PserverStub

log = logging.getLogger(__name__)

Resolve = Callable[[int, int], cluster_pb2.Cluster]
"""``resolve(shard, incarnation)`` waits a while for a later server of the shard than that of this
incarnation, and returns the servers of now; an empty cluster: there are none any more. Raises
ServersLostError if nobody can say."""

# A call ends so where the server is gone, was replaced, stops, or does not answer.
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_CLOSED = "the connection was closed"
# For so long a server may fail to answer of which the master says that it listens.
_UNREACHABLE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    message: Any
    incarnation: int
    """Of the server: what the answer says of its state holds for this one only."""
    frames: codec.Frames = ()
    """The contents of tensors that are not in the message."""

    def floats(self, proto: tensor_pb2.TensorProto) -> npt.NDArray[np.float32]:
        """A tensor of the message, see :func:`codec.floats`."""
        return codec.floats(proto, self.frames)


class Call:
    """A call under way. Errors as in :meth:`Pending.wait`.

    Args:
        sent: the first attempt; None: there is none.
        incarnation: of the server that it was sent to.
        queue: has the thread of the connection make the call, where the attempt is not answered.
    """

    def __init__(
        self, sent: DataCall | None, incarnation: int, queue: Callable[[], Future[Answer]]
    ) -> None:
        self._sent, self._incarnation, self._queue = sent, incarnation, queue
        self._answer: Answer | None = None
        self._queued = queue() if sent is None else None

    def done(self) -> bool:
        """Whether :meth:`result` returns or raises at once."""
        if self._sent is not None and self._sent.done():
            self.settle()
        return self._answer is not None or (self._queued is not None and self._queued.done())

    def settle(self) -> None:
        """Waits for the end of the first attempt."""
        if self._sent is None:
            return
        try:
            answer = self._sent.result()
        except grpc.RpcError:
            self._queued = self._queue()
        else:
            self._answer = Answer(answer.message, self._incarnation, answer.frames)
        self._sent = None

    def result(self) -> Answer:
        """Waits for the answer."""
        self.settle()
        if self._answer is None:
            assert self._queued is not None
            return self._queued.result()
        return self._answer


class ShardConnection:
    """Calls the server of one shard. Calls reach it in order.

    A call with frames is sent at once, and its answer is taken by whoever asks for it. All other
    calls, and those that were not answered, are made one after the other in a thread.

    Args:
        model: incarnation of the model, which must stay.
        resolve: None: nobody knows other servers, a call that fails is not repeated.
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
        # A thread of its own: grpc's futures start one for each call, which costs more than it.
        self._calls = ThreadPoolExecutor(1, thread_name_prefix=f"shard-{shard}")
        self._queued = 0  # calls of that thread

    @property
    def incarnation(self) -> int:
        """Of the server that is called now."""
        return self._server.incarnation

    def start(self, request: Any, *, timeout_s: float, known: int = -1) -> Call:
        """Starts a call.

        Args:
            timeout_s: deadline of each attempt in seconds.
            known: incarnation of the server of whose state the request tells (a version, a cursor):
                to another server it tells nothing.
        """
        with self._lock:
            server, stub, is_idle = self._server, self._stub, not self._queued
        sent = None
        if is_idle and isinstance(request, Framed):
            _address(request.message, self._job, server.incarnation, known)
            sent = stub.start(request, timeout_s=timeout_s)
        queue = partial(self._queue, request, timeout_s, known)
        return Call(sent, server.incarnation, queue)

    def _queue(self, request: Any, timeout_s: float, known: int) -> Future[Answer]:
        """Has the thread make a call."""
        with self._lock:
            self._queued += 1
        try:
            call = self._calls.submit(self._call, request, timeout_s, known)
        except RuntimeError:  # after close(), which another thread may call
            call = Future()
            assert self._closed is not None
            call.set_exception(self._closed(_CLOSED))
        call.add_done_callback(self._left_queue)
        return call

    def _left_queue(self, _: Future[Answer]) -> None:
        with self._lock:
            self._queued -= 1

    def moved(self, server: cluster_pb2.Server) -> None:
        """The master names this server; a call that waits for an earlier one is sent again."""
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
        """Closes the connection; calls in flight, and those that wait, fail with ``error``."""
        with self._lock:
            self._closed = self._closed or error
            self._stub.close()
        self._calls.shutdown(wait=False)  # those that wait end with their first look

    def _call(self, request: Any, timeout_s: float, known: int) -> Answer:
        give_up, told = 0.0, False
        while True:
            self._require_open()
            with self._lock:
                server, stub = self._server, self._stub
            message = request.message if isinstance(request, Framed) else request
            _address(message, self._job, server.incarnation, known)
            try:
                answer = stub.call(request, timeout_s=timeout_s)
                return Answer(answer.message, server.incarnation, answer.frames)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
            except UsageError:
                raise
            except ValueError:  # grpc, of a channel that was closed before the call
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
                give_up = 0.0  # another one starts: the master sees to it

    def _find(self, failed: cluster_pb2.Server, failure: str) -> cluster_pb2.Server | None:
        """Waits a while for a server that may answer. None: one starts.

        Raises:
            ServersLostError: there will be none for this incarnation of the model.
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
    """Puts the fence of a server before a request, and removes what the request tells of the state
    of another one."""
    with contextlib.suppress(AttributeError):  # Status has no fence
        request.fence.job, request.fence.incarnation = job, incarnation
    if incarnation == known:
        return
    if isinstance(request, pb.PullRequest):
        request.dense_version = -1
    elif isinstance(request, pb.ReadRowsRequest):
        request.cursor = 0

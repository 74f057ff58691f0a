"""Client side of the data plane."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
import zmq
from google.protobuf.message import Message

from torch_edl.errors import UsageError
from torch_edl.wire import cluster_pb2, keepalive, pserver_pb2, replica_pb2
from torch_edl.wire import data_plane_pb2 as pb
from torch_edl.wire.channel import AWAY, CallError, Stub
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.shared_memory import Bytes, ClientMemory
from torch_edl.wire.data_plane.sockets import LOCAL, Keys, cut, joined, prepare, require_sizes
from torch_edl.wire.services import Services

log = logging.getLogger(__name__)

_FIELDS: dict[type[Message], str] = {
    type(getattr(pb.DataRequest(), field.name)): field.name
    for field in pb.DataRequest.DESCRIPTOR.oneofs_by_name["request"].fields
}
CALLS = tuple(_FIELDS)
"""Types of the requests that are sent over the data plane."""
# Calls whose frames are in memory that is shared with a server of this machine. A server keeps the
# frames of other calls beyond their end.
_SHARED = (pserver_pb2.PullRequest, pserver_pb2.PushGradientsRequest)
_BULK = (replica_pb2.PutBaseRequest, replica_pb2.FetchReplicaRequest)

_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Events of a connection that failed or was lost.
_LOST = (
    zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.CONNECT_RETRIED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)


_NEVER_MS = 1 << 30  # 12 days


class DataCall:
    """A call that was sent.

    A thread that waits for its answer receives the answers of all calls of the connection, so no
    separate thread has to be woken.
    """

    def __init__(self, stub: DataStub, number: int, deadline: float) -> None:
        self._stub, self._number, self._deadline = stub, number, deadline
        self._end: Framed | CallError | None = None
        self._kept: list[Any] = []  # frames in shared memory
        self._room: Bytes | None = None  # shared memory for the answer
        self._memory: ClientMemory | None = None

    @property
    def has_ended(self) -> bool:
        """True if the answer or an error was received; does not read from the connection."""
        return self._end is not None

    def done(self) -> bool:
        """Return True if :meth:`result` does not block."""
        return self._stub._look(self)

    def result(self) -> Framed:
        """Wait for the answer and return it; its frames are views of the received data.

        Raises:
            CallError: the call failed; see ``code()`` and ``details()``.
        """
        if not self.has_ended:
            self._stub._wait(self)
        assert self._end is not None
        if isinstance(self._end, CallError):
            raise self._end
        return self._end


class DataStub:
    """Calls one server. Answers may arrive in another order than the calls.

    Args:
        endpoint: ZeroMQ endpoint of the server.
        token: token of the job.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        self.address = endpoint
        self._keys = Keys.of(token)
        self._lock = threading.Lock()  # protects the connection; held while a thread waits
        self._made = 0
        self._waiting: dict[int, DataCall] = {}
        self._closed = False
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # set by close()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._poller = zmq.Poller()
        self._memory: ClientMemory | None = None
        self._attached: DataCall | None = None  # the call that shares the memory

    def call(self, request: Framed, *, timeout_s: float) -> Framed:
        """Call the server and wait for the answer, see :meth:`DataCall.result`.

        Raises:
            UsageError: the call or one of its frames exceeds the size limit.
        """
        return self.start(request, timeout_s=timeout_s).result()

    def start(self, request: Framed, *, timeout_s: float) -> DataCall:
        """Send a call. Blocks only while another thread waits for an answer.

        Args:
            timeout_s: seconds after which :meth:`DataCall.result` raises ``DEADLINE_EXCEEDED``.

        Raises:
            UsageError: the call or one of its frames exceeds the size limit.
        """
        head = pb.DataRequest(key=self._keys.request)
        getattr(head, _FIELDS[type(request.message)]).CopyFrom(request.message)
        with self._lock:
            self._made += 1
            call = DataCall(self, self._made, time.monotonic() + timeout_s)
            try:
                socket = self._connected()
                head.call = call._number
                frames: Sequence[Any] = request.frames
                require_sizes(frames)
                if isinstance(request.message, _SHARED) and (memory := self._shared()) is not None:
                    frames, call._kept, call._room = memory.place(head, request)
                    call._memory = memory
                self._send(socket, head, frames)
            except zmq.Again:  # the connection was lost meanwhile
                call._end = self._unconnected()
                self._disconnect()
            except CallError as error:
                call._end = error
            else:
                self._waiting[call._number] = call
            return call

    def allocate(self, size: int) -> Bytes:
        """Return memory (size,) for a frame, shared with the server if possible."""
        with self._lock:
            memory = self._shared()
        return np.empty(size, np.uint8) if memory is None else memory.allocate(size)

    def _send(self, socket: zmq.Socket[bytes], head: pb.DataRequest, frames: Sequence[Any]) -> None:
        content = [head.SerializeToString(), *frames]
        require_sizes(content)
        socket.send_multipart(cut(content, self.address), zmq.NOBLOCK, copy=False)

    def _shared(self) -> ClientMemory | None:
        """Return the memory of the connection, once the server has attached it."""
        attached = self._attached
        if attached is not None and attached.has_ended:
            self._attached = None
            if isinstance(attached._end, CallError):
                log.info("%s: without shared memory: %s", self.address, attached._end.details())
                self._memory = None
        return self._memory if self._attached is None else None

    def _share(self, socket: zmq.Socket[bytes]) -> None:
        """Share memory with the server of a new connection, if it runs on this machine."""
        self._memory = self._attached = None
        if not self.address.startswith(LOCAL):
            return
        try:
            self._memory = ClientMemory()
        except OSError as error:
            log.info("%s: without shared memory: %s", self.address, error)
            return
        self._made += 1
        head = pb.DataRequest(
            key=self._keys.request, call=self._made, attach_memory=self._memory.request()
        )
        self._send(socket, head, ())
        self._attached = self._waiting[self._made] = DataCall(self, self._made, math.inf)

    def _look(self, call: DataCall) -> bool:
        if not call.has_ended and self._lock.acquire(blocking=False):
            try:
                while not call.has_ended and self._take(0):
                    pass
            finally:
                self._lock.release()
        return call.has_ended

    def _wait(self, call: DataCall) -> None:
        with self._lock:
            while not call.has_ended:
                left = max(0.0, call._deadline - time.monotonic())
                if not self._take(math.ceil(1000 * left)) and not left:
                    del self._waiting[call._number]
                    text = f"no answer from {self.address}"
                    call._end = CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text)
            if isinstance(call._end, CallError) and call._end.code() in AWAY:
                self._disconnect()  # a late answer must not be received

    def _take(self, wait_ms: int) -> bool:
        """Receive one event, if any: an answer, or the end of the connection with all its calls.

        Return True if an event was received.
        """
        socket = self._socket
        assert socket is not None, "a call waits without a connection"
        ready = dict(self._poller.poll(wait_ms))
        # An answer may have arrived after the socket was polled and before its monitor was.
        if socket in ready or (ready and socket.poll(0)):
            received = [frame.buffer for frame in socket.recv_multipart(copy=False)]
            head_frame, *frames = joined(received, self.address)
            answer = pb.DataAnswer.FromString(bytes(head_frame))
            call = self._waiting.pop(answer.call, None)
            if call is not None:
                call._end = _answered(answer, frames, call)
        elif ready:
            self._disconnect()
        return bool(ready)

    def _unconnected(self) -> CallError:
        where = self.address or "a server that does not listen yet"
        return CallError(grpc.StatusCode.UNAVAILABLE, f"no connection to {where}")

    def _cut_off(self) -> CallError:
        return CallError(grpc.StatusCode.CANCELLED, "the connection was closed")

    def _connected(self) -> zmq.Socket[bytes]:
        """Return the socket; connect again if the connection was lost."""
        if self._closed:
            raise self._cut_off()
        if not self.address:  # the server is being started
            raise self._unconnected()
        if self._monitor is not None and self._monitor.poll(0):
            self._disconnect()
        if self._socket is None:
            socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
            self._socket = socket
            socket.linger = 0
            prepare(socket, self.address)
            socket.ipv6 = "[" in self.address
            # This class reconnects itself. With -1, ZeroMQ drops data that arrived last.
            socket.reconnect_ivl = _NEVER_MS
            keepalive.watch_zmq(socket)
            self._keys.secure_client(socket, self.address)
            self._monitor = socket.get_monitor_socket(_LOST)
            for each in (socket, self._monitor, self._woken):
                self._poller.register(each, zmq.POLLIN)
            # A stub may be dropped without close(). ZeroMQ's thread would then wait for the unread
            # monitor, and with it all connections of the process.
            self._end = weakref.finalize(self, _end, socket, self._monitor)
            socket.connect(self.address)
            self._share(socket)
        return self._socket

    def _disconnect(self) -> None:
        for call in self._waiting.values():
            call._end = self._cut_off() if self._closed else self._unconnected()
        self._waiting.clear()
        self._poller = zmq.Poller()
        self._end()
        self._socket = self._monitor = None
        self._memory = self._attached = None  # a late answer may still be written there

    def close(self) -> None:
        """Close the connection; calls that wait end with ``CANCELLED``."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._woken, 1)
        with self._lock:
            self._disconnect()
            os.close(self._woken)


def _end(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    socket.disable_monitor()
    monitor.close(0)
    socket.close(0)


def _answered(answer: pb.DataAnswer, frames: list[Any], call: DataCall) -> Framed | CallError:
    call._kept = []
    if answer.code:
        code = _CODES.get(answer.code, grpc.StatusCode.UNKNOWN)
        return CallError(code, answer.details)
    which = answer.WhichOneof("answer")
    if which is None:
        return CallError(grpc.StatusCode.INTERNAL, "an empty answer")
    if call._memory is not None and call._room is not None:
        try:
            frames = call._memory.answered(answer.shared, frames, call._room)
        except UsageError as error:
            return CallError(grpc.StatusCode.INTERNAL, str(error))
    return Framed(getattr(answer, which), frames)


class PserverStub:
    """Sends requests with frames over the data plane, and messages over gRPC.

    Args:
        services: see :class:`~torch_edl.wire.channel.Stub`.
        token: token of the job.
    """

    def __init__(self, services: Services, server: cluster_pb2.Server, token: str) -> None:
        self.address = server.address
        # Without retries of gRPC, which would slow every call.
        self._stub = Stub(services, server.address, token, retries=False)
        self._data = DataStub(server.data_plane, token)
        # A separate connection, so that no other call waits behind a bulk transfer.
        self._bulk = DataStub(server.data_plane, token)

    def call(self, request: Message | Framed, *, timeout_s: float) -> Framed:
        """Call the server and wait for the answer.

        Raises:
            grpc.RpcError: the call failed; see ``code()`` and ``details()``.
            UsageError: the request exceeds the size limit.
            ValueError: the stub was closed.
        """
        if isinstance(request, Framed):
            return self.start(request, timeout_s=timeout_s).result()
        return Framed(self._stub.call(request, timeout_s=timeout_s))

    def start(self, request: Framed, *, timeout_s: float) -> DataCall:
        """Send a call over the data plane.

        Raises:
            UsageError: the request exceeds the size limit.
        """
        data = self._bulk if isinstance(request.message, _BULK) else self._data
        return data.start(request, timeout_s=timeout_s)

    def allocate(self, size: int) -> Bytes:
        """Return memory (size,) for a frame of a push; see :meth:`DataStub.allocate`."""
        return self._data.allocate(size)

    def close(self) -> None:
        """Close the connections; calls in flight end with ``CANCELLED``."""
        for each in (self._stub, self._data, self._bulk):
            each.close()

"""Client side of the data plane."""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
import numpy as np
import zmq
from google.protobuf.message import Message

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.wire import data_plane_pb2 as pb
from torch_edl.wire import keepalive, pserver_pb2
from torch_edl.wire.channel import AWAY, CallError
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.shared_memory import Bytes, ClientMemory
from torch_edl.wire.data_plane.sockets import (
    LOCAL,
    PIECE_BYTES,
    Keys,
    cut,
    joined,
    prepare,
    require_sizes,
)

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


class CompiledRequest(Protocol):
    """A request that the compiled core encodes, and whose answer it decodes."""

    def encode(
        self, key: bytes, number: int, memory: _core.SharedMemory | None
    ) -> tuple[list[Any], list[Any], Bytes | None]:
        """Encode the call with a number.

        Args:
            key: key in each request.
            memory: memory for frames, shared with the server.

        Returns:
            The frames to send; frames in the memory, which must be kept until the call has ended;
            and the room in the memory for the answer.
        """
        ...


class ReceivedPull:
    """The answer to a pull that the compiled core encoded, with a message and frames as of a
    :class:`Framed`.

    Args:
        parts: the arguments of an answer of :func:`_core.read_pull`.
    """

    def __init__(self, message: Any, parts: tuple[Any, ...], frames: Callable[[], Any]) -> None:
        self.message, self.parts, self._find_frames = message, parts, frames

    @functools.cached_property
    def frames(self) -> list[Any]:
        """Contents of the tensors.

        Raises:
            UsageError: the server names a place that is not in the room of the answer.
        """
        found: list[Any] = self._find_frames()
        return found


class DataCall:
    """A call that was sent.

    A thread that waits for its answer receives the answers of all calls of the connection, so no
    separate thread has to be woken.
    """

    def __init__(self, stub: DataStub, number: int, deadline: float) -> None:
        self._stub, self._number, self._deadline = stub, number, deadline
        self._end: Framed | ReceivedPull | CallError | None = None
        self._kept: list[Any] = []  # frames in shared memory
        self._room: Bytes | None = None  # shared memory for the answer
        self._memory: ClientMemory | None = None
        self._compiled = False

    @property
    def has_ended(self) -> bool:
        """True if the answer or an error was received; does not read from the connection."""
        return self._end is not None

    def done(self) -> bool:
        """Return True if :meth:`result` does not block."""
        return self._stub._look(self)

    def result(self) -> Framed | ReceivedPull:
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
        answer = self.start(request, timeout_s=timeout_s).result()
        assert isinstance(answer, Framed)
        return answer

    def start(self, request: Framed | CompiledRequest, *, timeout_s: float) -> DataCall:
        """Send a call. Blocks only while another thread waits for an answer.

        Args:
            timeout_s: seconds after which :meth:`DataCall.result` raises ``DEADLINE_EXCEEDED``.

        Raises:
            UsageError: the call or one of its frames exceeds the size limit.
        """
        with self._lock:
            self._made += 1
            call = DataCall(self, self._made, time.monotonic() + timeout_s)
            try:
                socket = self._connected()
                self._send(socket, self._encoded(call, request))
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

    def _encoded(self, call: DataCall, request: Framed | CompiledRequest) -> list[Any]:
        """Return the frames to send."""
        if not isinstance(request, Framed):
            call._memory, call._compiled = self._shared(), True
            core = None if call._memory is None else call._memory.core
            content, call._kept, call._room = request.encode(self._keys.request, call._number, core)
            return content
        head = pb.DataRequest(key=self._keys.request, call=call._number)
        getattr(head, _FIELDS[type(request.message)]).CopyFrom(request.message)
        frames: Sequence[Any] = request.frames
        require_sizes(frames)
        if isinstance(request.message, _SHARED) and (memory := self._shared()) is not None:
            frames, call._kept, call._room = memory.place(head, request)
            call._memory = memory
        return [head.SerializeToString(), *frames]

    def _send(self, socket: zmq.Socket[bytes], content: list[Any]) -> None:
        require_sizes(content)
        if len(content) == 1 and len(content[0]) < PIECE_BYTES:
            socket.send(content[0], zmq.NOBLOCK)
        else:
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
        self._send(socket, [head.SerializeToString()])
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
        ready = self._poller.poll(wait_ms)
        # An answer may have arrived after the socket was polled and before its monitor was.
        if ready and (ready[0][0] is socket or _readable(socket)):
            frame = socket.recv(copy=False)
            received = [frame.buffer]
            while frame.more:
                frame = socket.recv(copy=False)
                received.append(frame.buffer)
            head, *frames = joined(received, self.address)
            answer = pb.DataAnswer.FromString(bytes(head))
            call = self._waiting.pop(answer.call, None)
            if call is not None:
                call._end = _answered(answer, head, frames, call)
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
        if self._monitor is not None and _readable(self._monitor):
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


def _readable(socket: zmq.Socket[bytes]) -> bool:
    events = socket.get(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)


def _end(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    socket.disable_monitor()
    monitor.close(0)
    socket.close(0)


def _answered(
    answer: pb.DataAnswer, head: Any, frames: list[Any], call: DataCall
) -> Framed | ReceivedPull | CallError:
    call._kept = []
    if answer.code:
        code = _CODES.get(answer.code, grpc.StatusCode.UNKNOWN)
        return CallError(code, answer.details)
    which = answer.WhichOneof("answer")
    if which is None:
        return CallError(grpc.StatusCode.INTERNAL, "an empty answer")
    if call._compiled and which == "pull":
        memory, room = call._memory, call._room
        if memory is None or room is None:
            return ReceivedPull(answer.pull, (head, frames, None, 0), lambda: frames)
        return ReceivedPull(
            answer.pull,
            (head, frames, room, memory.core.position(room)),
            lambda: memory.answered(answer.shared, frames, room),
        )
    if call._memory is not None and call._room is not None:
        try:
            frames = call._memory.answered(answer.shared, frames, call._room)
        except UsageError as error:
            return CallError(grpc.StatusCode.INTERNAL, str(error))
    return Framed(getattr(answer, which), frames)

"""Server side of the data plane."""

from __future__ import annotations

import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc
import zmq
from google.protobuf.message import DecodeError

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.wire import data_plane_pb2 as pb
from torch_edl.wire import keepalive
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.doorkeeper import Doorkeeper
from torch_edl.wire.data_plane.shared_memory import AttachedMemories, put_places, received
from torch_edl.wire.data_plane.sockets import (
    LOCAL,
    MAX_CALL_BYTES,
    Keys,
    cut,
    joined,
    prepare,
    require_sizes,
)
from torch_edl.wire.server import require_few, status_of

log = logging.getLogger(__name__)

MOST_FRAMES = 4096
"""Largest number of frames in one call."""
_HANDSHAKE_MS = 5_000  # a connection without a handshake is closed after this time
_IDLE_MS = 10_000  # a peer that is idle for this time gets a heartbeat
_GONE_MS = 30_000

_MORE = int(zmq.SNDMORE)
_FLUSH_MS = 500  # time limit for sending the last answers
_IO_THREADS = 4  # largest number of threads that copy and encrypt frames
_RELEASE_S = 60  # time between two looks for clients that have ended
_LARGE = 1 << 20  # bytes of a call that is large enough to move to another thread
# If workers need the cores, one thread answers 1.4 times as many small calls as several threads,
# which compete for the interpreter lock (measured with 3 clients on 2 cores).
_HAS_SPARE_CORES = (os.cpu_count() or 1) >= 8


@dataclass(frozen=True)
class Later:
    """An answer that is sent after ``wait`` has returned, because the change is not durable before.

    All such answers wait one after the other in one thread.
    """

    answer: Framed
    wait: Callable[[], None]


Answer = Callable[[Framed, bool], Framed | Later]
"""Answers a call. If the second argument is False, the function must not wait for other calls: it
raises :class:`WouldWaitError` before any change, and is called again in another thread."""


class Quick(NamedTuple):
    """An answer in the form in which it is sent."""

    call: int
    name: str
    content: list[Any]
    wait: Callable[[], None] | None
    """Waits until the answer may be sent; None if it may be sent at once."""


QuickAnswer = Callable[[Sequence[Any], "_core.SharedMemory | None", int], Quick | None]
"""Answers a call that usually comes, from its frames, the memory that its sender shares, and the
number of bytes of frames above which the call is unusual. Returns None, or raises an exception,
before any change if the call is unusual; the call is then decoded and given to its
:data:`Answer`."""


class WouldWaitError(Exception):
    """The call cannot be answered without waiting for other calls."""


def in_pool(answer: Callable[[Framed], Framed]) -> Answer:
    """Return an answer that takes long, and therefore never runs in the thread that receives."""

    def handle(given: Framed, may_wait: bool) -> Framed:
        if not may_wait:
            raise WouldWaitError
        return answer(given)

    return handle


class DataServer:
    """Answers calls until :meth:`close`.

    One thread receives and sends all messages. The same thread answers small calls, because moving
    a call to another thread takes longer than the answer. All other calls run in a pool: large
    calls, calls that wait for others, and on machines with many cores also small calls that arrive
    while others are waiting.

    Args:
        answers: functions by field name of DataRequest; errors are mapped as in
            :func:`torch_edl.wire.server.serve`.
        endpoint: ZeroMQ endpoint; ``tcp://host:*`` binds a free port.
        token: token of the job.
        threads: number of concurrent calls; further calls are queued.
        quick: a quick answer to usual calls.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        *,
        endpoint: str,
        token: str,
        threads: int,
        quick: QuickAnswer | None = None,
    ) -> None:
        self._answers = answers
        self._quick = quick
        self._key = Keys.of(token)
        self._memories = AttachedMemories()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="data")
        self._context = zmq.Context(max(1, min(_IO_THREADS, (os.cpu_count() or 1) // 4)))
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        prepare(socket, endpoint)
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.ipv6 = "[" in endpoint
        if not endpoint.startswith(LOCAL):
            socket.heartbeat_ivl, socket.heartbeat_timeout = _IDLE_MS, _GONE_MS
            keepalive.watch_zmq(socket)
        self._key.secure_server(socket, endpoint)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise UsageError(f"{endpoint}: cannot listen there: {error.strerror}") from error
        self.endpoint = str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        self._door: Doorkeeper | None = None
        if not endpoint.startswith(LOCAL):
            port = int(self.endpoint.rpartition(":")[2])
            self._door = Doorkeeper(socket, port, _HANDSHAKE_MS / 1000)
        self._later = ThreadPoolExecutor(1, thread_name_prefix="data-later")
        self._calls: set[Future[None]] = set()  # running calls of both pools
        self._done: SimpleQueue[tuple[bytes, list[Any]]] = SimpleQueue()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = False
        self._grace_s = 0.0
        self._thread = threading.Thread(target=self._run, name="data-plane", daemon=True)
        self._thread.start()

    def close(self, grace_s: float = 0) -> None:
        """Stop the server; running calls are answered only if they end within the grace."""
        self._grace_s = grace_s
        self._closing = True
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        if self._door is not None:
            poller.register(self._door.monitor, zmq.POLLIN)
        released_at = time.monotonic()
        while not self._closing:
            ready = dict(poller.poll(_RELEASE_S * 1000))
            try:
                if time.monotonic() - released_at >= _RELEASE_S:
                    self._memories.release_ended()
                    released_at = time.monotonic()
                if self._door is not None and self._door.monitor in ready:
                    self._door.heed()
                if self._woken in ready:
                    os.eventfd_read(self._woken)
                    self._send_answers()
                if self._socket in ready:
                    sender, pieces = self._receive()
                    if not self._answered_here(sender, pieces):
                        self._start(self._pool, self._call, sender, pieces)
            except Exception:  # an error of one call must not stop the others
                log.exception("data plane")
        if self._door is not None:
            self._door.close()  # else ZeroMQ would block on its unread monitor
        self._pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + self._grace_s
        while (calls := set(self._calls)) and (left := deadline - time.monotonic()) > 0:
            wait(calls, left)
        self._later.shutdown(wait=False, cancel_futures=True)
        self._send_answers()
        self._context.destroy(_FLUSH_MS)

    # The methods of the socket for whole messages take 1.4 times as long: they read an option after
    # each frame, and combine flags that are enumerations.

    def _receive(self) -> tuple[bytes, list[memoryview]]:
        """Receive a message. Returns the identity of the connection, and the frames."""
        sender = self._socket.recv()
        frame = self._socket.recv(copy=False)
        pieces = [frame.buffer]
        while frame.more:
            frame = self._socket.recv(copy=False)
            pieces.append(frame.buffer)
        return sender, pieces

    def _write(self, sender: bytes, content: list[Any]) -> None:
        send = self._socket.send
        send(sender, _MORE)
        *others, last = cut(content, self.endpoint)
        for each in others:
            send(each, _MORE, copy=False)
        send(last, copy=False)

    def _send_answers(self) -> None:
        while not self._done.empty():
            sender, content = self._done.get()
            self._write(sender, content)

    def _start(self, threads: ThreadPoolExecutor, what: Callable[..., None], *args: Any) -> None:
        call = threads.submit(what, *args)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    def _answered_here(self, sender: bytes, pieces: list[Any]) -> bool:
        if sum(map(len, pieces)) > _LARGE or (_HAS_SPARE_CORES and self._socket.poll(0)):
            return False
        answered = self._usual(sender, pieces, _LARGE)
        if answered is None:
            try:
                answered = self._answer(sender, pieces, may_wait=False)
            except WouldWaitError:
                return False
        if answered.wait is None:
            self._write(sender, answered.content)
        else:
            self._start(self._later, self._finish, sender, answered)
        return True

    def _usual(self, sender: bytes, pieces: list[Any], most_bytes: int) -> Quick | None:
        if self._quick is None:
            return None
        try:
            return self._quick(pieces, self._memories.find(sender), most_bytes)
        except Exception:  # decoded step by step, the call gets an answer with the reason
            return None

    def _call(self, sender: bytes, pieces: list[Any]) -> None:
        answered = self._usual(sender, pieces, MAX_CALL_BYTES)
        if answered is None:
            answered = self._answer(sender, pieces, may_wait=True)
        if answered.wait is None:
            self._send(sender, answered.content)
        else:
            self._start(self._later, self._finish, sender, answered)

    def _finish(self, sender: bytes, answered: Quick) -> None:
        assert answered.wait is not None
        content = answered.content
        try:
            answered.wait()
        except Exception as error:
            content = _failed(answered.call, *status_of(answered.name, error)).content
        self._send(sender, content)

    def _send(self, sender: bytes, content: list[Any]) -> None:
        self._done.put((sender, content))
        self._wake()

    def _answer(self, sender: bytes, pieces: list[Any], *, may_wait: bool) -> Quick:
        call, name = 0, "a call"
        try:
            # Only the first frame is joined and decoded before the sender is authenticated.
            frames = joined(pieces, self.endpoint)
            raw = bytes(next(frames, b""))
            try:
                require_few(pb.DataRequest.DESCRIPTOR, raw)
                head = pb.DataRequest.FromString(raw)
            except DecodeError as error:
                raise UsageError(f"the first frame is no DataRequest: {error}") from None
            call, name = head.call, head.WhichOneof("request") or name
            if not hmac.compare_digest(head.key, self._key.request):
                code = grpc.StatusCode.UNAUTHENTICATED
                return _failed(call, code, "wrong or missing key: not a process of this job")
            if name == "attach_memory":
                return self._attach(sender, head)
            if name not in self._answers:
                raise UsageError("a DataRequest without a request; use a newer torch-edl")
            require_sizes(pieces)
            memory = self._memories.find(sender)
            request = received(memory, head, getattr(head, name), list(frames))
            if len(request.frames) >= MOST_FRAMES:
                raise UsageError(f"{len(request.frames) + 1} frames: at most {MOST_FRAMES} travel")
            if not may_wait and request.lent and sum(map(len, request.frames)) > _LARGE:
                raise WouldWaitError
            given = self._answers[name](request, may_wait)
            later = given.wait if isinstance(given, Later) else None
            given = given.answer if isinstance(given, Later) else given
            answer = pb.DataAnswer(call=call)
            getattr(answer, name).CopyFrom(given.message)
            sent = given.frames
            if memory is not None:
                sent = put_places(memory, head, answer, sent)
            content = [answer.SerializeToString(), *sent]
            require_sizes(content)
        except WouldWaitError:
            raise
        except Exception as error:
            return _failed(call, *status_of(name, error))
        return Quick(call, name, content, later)

    def _attach(self, sender: bytes, head: pb.DataRequest) -> Quick:
        if not self.endpoint.startswith(LOCAL):
            raise UsageError("shared memory: the client is on another machine")
        self._memories.attach(sender, head.attach_memory)
        answer = pb.DataAnswer(call=head.call, attach_memory=pb.AttachMemoryResponse())
        return Quick(head.call, "attach_memory", [answer.SerializeToString()], None)


def _failed(call: int, code: grpc.StatusCode, details: str) -> Quick:
    answer = pb.DataAnswer(call=call, code=code.value[0], details=details)
    return Quick(call, "", [answer.SerializeToString()], None)

"""Client side of gRPC services: every call is encrypted, and has a deadline and a key.

See :mod:`torch_edl.wire.security.credentials` for the encryption. gRPC itself repeats calls that
end with ``UNAVAILABLE``: either the call did not run, or its answer was lost. Every RPC of the
project may be repeated; see docs/protocol.md.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from torch_edl.config.environment import master_away_s
from torch_edl.errors import UsageError
from torch_edl.wire.endpoint import bare
from torch_edl.wire.security import credentials
from torch_edl.wire.security.keys import call_key, require_text
from torch_edl.wire.services import PSERVER, REPLICAS, Services, method_of, methods

log = logging.getLogger(__name__)

MASTER_AWAY_S = master_away_s()
"""Seconds for which the processes of a job wait for a master to be restarted."""

# Status of a call that the other side cannot complete because its disk is full.
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
FULL_RETRY_S = 0.5
# Pause before a call that waits for the other side is repeated, seconds. gRPC itself reconnects at
# most once a second.
_AGAIN_S = 0.1
# Status of a call if the master is away or has just been restarted.
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
# Status of a call that fails again if it is repeated.
REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)

# Largest message; the dense parameters of a shard are sent in one message.
MAX_MESSAGE_BYTES = 1 << 30

# Requests to the master are small, except for metric states: a metric with reduction "cat" holds
# the predictions of a whole task. Answers of the master may contain those of all tasks.
_TO_MASTER = (64 << 20, "a metric that keeps every prediction: use fewer --records-per-task")
_TO_SERVER = (MAX_MESSAGE_BYTES, "the part of the model on one server: use more --ps")

# Measured on loopback with messages of 670 KB: smaller frames and windows cost a third more CPU for
# an answer. With these sizes, the bandwidth-delay probe would only cause useless pings.
COMMON_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.write_buffer_size", 4 << 20),
)

_RETRY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def request_limit(services: Services) -> tuple[int, str]:
    """Return the size limit of a request to these services in bytes, and the likely cause of a
    larger request, for an error message."""
    return _TO_SERVER if set(services) & set(PSERVER + REPLICAS) else _TO_MASTER


def unanswered(error: grpc.RpcError) -> str:
    """Return the error of a call without an answer, with its possible causes."""
    return (
        f"{error.details() or error.code().name.lower()}; does its process run (its log tells), is "
        "the address right, and do firewalls and network policies admit connections to that port?"
    )


class CallError(grpc.RpcError):  # type: ignore[misc]
    """The error of a call that did not use gRPC, with a status code of gRPC."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """Return the status code, as :meth:`grpc.Call.code` does."""
        return self._code

    def details(self) -> str:
        """Return the message, as :meth:`grpc.Call.details` does."""
        return self._details


class Absence:
    """Seconds for which consecutive calls have failed, without the time this process was paused.

    A process that was paused (SIGSTOP, frozen container) finds after waking that its call has
    failed long ago, although the other side was not away.

    Args:
        attempt_s: longest duration of an attempt, with the pause before it. Time beyond this limit
            is not counted.
        clock: monotonic clock in seconds.
    """

    def __init__(self, attempt_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt_s = attempt_s
        self._clock = clock
        self._at = clock()
        self.seconds = 0.0

    def answered(self) -> None:
        """Record that the other side answered: reset the time to 0."""
        self._at, self.seconds = self._clock(), 0.0

    def failed(self) -> float:
        """Record that an attempt failed; return the seconds of absence."""
        before, self._at = self._at, self._clock()
        self.seconds += min(self._at - before, self._attempt_s)
        return self.seconds


class Stub:
    """Calls the methods of some services at one address. The request type selects the method.

    Args:
        services: one or more services, see :mod:`torch_edl.wire.services`.
        retries: repeat calls that end with ``UNAVAILABLE``. Every call gets slower by this option,
            and gRPC does not repeat messages above 256 KB.

    Raises:
        UsageError: the token is not printable, or is too weak for an address off loopback, or the
            folder of certificates cannot be used.

    Example:
        >>> master = Stub(services.CONTROL, "127.0.0.1:4000", "token")
        >>> status = master.call(master_pb2.GetStatusRequest(), timeout_s=5)
    """

    def __init__(
        self, services: Services, address: str, token: str, *, retries: bool = True
    ) -> None:
        require_text(token)
        self.address = bare(address)
        self.before_retry: Callable[[], None] = lambda: None
        """Called before each repetition of a call: of a call that waits for the other side, and of
        a call of :meth:`insist` without an answer. An exception ends the wait."""
        self._closed = threading.Event()
        self._answered = False  # True after the first answer of a process of this job
        self._limit, self._cause = request_limit(services)
        self._metadata = (("authorization", call_key(token)),)
        self._channel = credentials.channel(
            address,
            token,
            [
                *COMMON_OPTIONS,
                ("grpc.enable_retries", int(retries)),
                ("grpc.service_config", json.dumps(_RETRY)),
                # Each stub has its own connection: a shared pool could keep a closed one alive.
                ("grpc.use_local_subchannel_pool", 1),
                # A proxy from the environment cannot reach a master on loopback or in a pod.
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                # The name of a restarted master may have a new address; by default, gRPC would
                # use the old one for half a minute.
                ("grpc.dns_min_time_between_resolutions_ms", 1000),
            ],
        )
        self._calls = ThreadPoolExecutor(1, thread_name_prefix=f"calls-{address}")
        self._methods: dict[str, grpc.UnaryUnaryMultiCallable[Any, Any]] = {}
        for name, method in methods(services).items():
            answer: Callable[[bytes], Any] = GetMessageClass(method.output_type).FromString
            self._methods[name] = self._channel.unary_unary(
                f"/{method.containing_service.full_name}/{name}",
                response_deserializer=answer,
            )

    def call(self, request: Message, *, timeout_s: float, wait: bool = False) -> Any:
        """Call a method and wait for the answer.

        Args:
            timeout_s: deadline in seconds, including retries.
            wait: wait for a connection until the deadline instead of failing at once.

        Raises:
            grpc.RpcError: the call failed; see ``code()`` and ``details()``. The code is
                ``UNAUTHENTICATED`` if the peer is no process of this job.
            UsageError: the request exceeds the size limit of the service.
        """
        # Encode here instead of in grpc, to encode only once: ByteSize encodes the message, too.
        encoded = request.SerializeToString()
        if len(encoded) > self._limit:
            raise UsageError(
                f"{method_of(request).name}: the request has {len(encoded)} bytes, at most "
                f"{self._limit} are taken; it may be {self._cause}"
            )
        send = self._methods[method_of(request).name]
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                # Without gRPC's wait_for_ready: such a call would notice neither a failed handshake
                # nor a request to stop the wait.
                answer = send(encoded, timeout=left_s, metadata=self._metadata)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                self._require_peer(error.details() or "")
                if not wait or time.monotonic() + _AGAIN_S >= deadline:
                    raise
            else:
                self._answered = True
                return answer
            self.before_retry()
            if self._closed.wait(_AGAIN_S):
                raise CallError(grpc.StatusCode.CANCELLED, "the connection was closed")

    def _require_peer(self, details: str) -> None:
        """Raise ``UNAUTHENTICATED`` if the call failed because the peer is no process of this job.

        If a process of this job has answered before, another process uses its port for now, and the
        caller may wait for it to come back.
        """
        refusal = "" if self._answered else credentials.refusal(self.address, details)
        if refusal:
            raise CallError(grpc.StatusCode.UNAUTHENTICATED, refusal) from None

    def insist(
        self,
        request: Message,
        *,
        timeout_s: float,
        away_s: float = 0.0,
        until: Callable[[Any], bool] = lambda answer: True,
        before_call: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call as :meth:`call` does, and repeat the call until an answer is accepted.

        The call is also repeated while the disk of the other side is full.

        Args:
            timeout_s: deadline of each call in seconds.
            away_s: seconds for which the other side may be away, see :class:`Absence`.
            until: returns True if an answer is accepted.
            before_call: called before each call; an exception ends the wait.

        Raises:
            grpc.RpcError: the other side rejected the call, or was away for too long.
        """
        absence, told = Absence(timeout_s), False
        while True:
            before_call()
            try:
                answer = self.call(request, timeout_s=timeout_s, wait=True)
            except grpc.RpcError as error:
                if error.code() in AWAY and absence.failed() < away_s:
                    self.before_retry()
                    method = method_of(request).name
                    log.warning("%s does not answer %s; calling again", self.address, method)
                    continue
                if error.code() is not FULL:
                    raise
                if not told:
                    told = True
                    log.warning("%s: waiting until there is room", error.details())
                time.sleep(FULL_RETRY_S)
            else:
                told = False
                if until(answer):
                    return answer
            absence.answered()

    def start(self, request: Message, *, timeout_s: float, wait: bool = False) -> Future[Any]:
        """Start a call and return a future for its answer or error.

        Started calls run one after the other, in order, in a thread of the stub. The futures of
        grpc start a new thread whenever a channel was idle, which costs a worker more than the
        call itself (three starts and 1.5 ms a step, measured).
        """
        return self._calls.submit(self.call, request, timeout_s=timeout_s, wait=wait)

    def close(self) -> None:
        """Close the connection; calls in flight end with ``CANCELLED``, others are dropped."""
        self._closed.set()
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._channel.close()

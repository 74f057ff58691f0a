"""Server side of gRPC services: token check, limits of sizes and of parts, errors as status codes.

Parts are counted before a request is decoded: an empty part has two bytes on the wire and a hundred
times as many as a Python object, so the size of a request does not limit the time and memory for
decoding it."""

from __future__ import annotations

import hmac
import logging
import resource
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from torch_edl.errors import StaleIncarnationError, UsageError
from torch_edl.wire import keepalive
from torch_edl.wire.channel import COMMON_OPTIONS, MAX_MESSAGE_BYTES, request_limit
from torch_edl.wire.endpoint import is_remote
from torch_edl.wire.security import credentials
from torch_edl.wire.security.keys import call_key, require_text
from torch_edl.wire.services import Services, methods

log = logging.getLogger(__name__)

# Number of queued calls, including calls without a token; further calls are rejected. A queued call
# costs little, because its message is read when a thread handles it.
MAX_WAITING_CALLS = 1024
MAX_CALLS_OF_CONNECTION = 64
_OWN_FILES = 256  # files that a process needs beside its connections
_MANY = (1 << 31) - 1
_HANDSHAKE_MS = 10_000  # a connection without a handshake is closed after this time

Handler = Callable[[Any, grpc.ServicerContext], Any]


def serve(
    services: Services,
    handlers: Mapping[str, Handler],
    *,
    address: str,
    token: str,
    threads: int,
    waiting: Collection[str] = (),
    waiting_threads: int = 0,
) -> tuple[grpc.Server, int]:
    """Start a server; return the server and its port.

    Args:
        handlers: ``handler(request, context) -> response`` by method name; every method of all
            services needs a handler.
        address: ``host:port``; port 0 binds a free port.
        token: token of the job. A client without the job's certificate
            (:mod:`torch_edl.wire.security.credentials`) cannot connect; a call without the job's
            key ends with ``UNAUTHENTICATED``.
        threads: number of concurrent calls.
        waiting: names of methods whose handlers wait for a change. Their calls have threads of
            their own, so no other call waits for one of these.
        waiting_threads: number of concurrent calls of these methods; threads start when needed.

    Raises:
        UsageError: the address cannot be bound, or the token has invalid characters or is too weak.
    """
    require_text(token)
    missing = methods(services).keys() - handlers.keys()
    assert not missing, f"no handler for {missing}"
    server = grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="calls"),
        interceptors=[_TokenCheck(token)],
        options=[
            # Listed before COMMON_OPTIONS, because grpc uses the first of two values.
            ("grpc.max_receive_message_length", request_limit(services)[0]),
            # Per connection. If more than 1,000 calls are queued, grpc cancels random calls of any
            # client, so one unauthenticated connection must not send that many.
            ("grpc.max_concurrent_streams", MAX_CALLS_OF_CONNECTION),
            # Two servers on one port would share its connections; bind must fail instead.
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", _most_connections()),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            *(keepalive.SERVER_OPTIONS if is_remote(address) else ()),
            *COMMON_OPTIONS,
        ],
        maximum_concurrent_rpcs=threads + waiting_threads + MAX_WAITING_CALLS,
    )
    waiters = ThreadPoolExecutor(waiting_threads, "waiting") if waiting else None
    for service in services:
        answering = {
            m.name: _answering(m, handlers[m.name], waiters if m.name in waiting else None)
            for m in service.methods
        }
        generic = grpc.method_handlers_generic_handler(service.full_name, answering)
        server.add_generic_rpc_handlers((generic,))
    try:
        port = credentials.listen(server, address, token)
    except RuntimeError as error:
        raise UsageError(
            f"{address}: cannot listen there, the port is in use or the host is not mine; "
            "choose another port, or 0 for a free one"
        ) from error
    server.start()
    return server, port


def _most_connections() -> int:
    """Return a limit of connections that leaves enough files for this process."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return _MANY
    return min(_MANY, max(files // 2, files - _OWN_FILES))


def _answering(
    method: MethodDescriptor, handler: Handler, pool: ThreadPoolExecutor | None
) -> grpc.RpcMethodHandler[Any, Any]:
    parse: Callable[[bytes], Any] = GetMessageClass(method.input_type).FromString

    def answer(raw: bytes, context: grpc.ServicerContext) -> Any:
        try:
            require_few(method.input_type, raw)
            return handler(parse(raw), context)
        except Exception as error:
            context.abort(*status_of(method.name, error))

    answer.experimental_thread_pool = pool  # type: ignore[attr-defined]  # None: that of the server
    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=_encode)


def _encode(answer: Any) -> bytes:
    encoded: bytes = answer.SerializeToString()
    if len(encoded) > MAX_MESSAGE_BYTES:
        # gRPC then ends the call with INTERNAL. gRPC's own check would end the call with
        # RESOURCE_EXHAUSTED, after which the client would call again.
        raise UsageError(f"an answer of {len(encoded)} bytes; at most {MAX_MESSAGE_BYTES} travel")
    return encoded


def status_of(name: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return status code and message for an exception of a method's handler."""
    if isinstance(error, StaleIncarnationError):
        return grpc.StatusCode.FAILED_PRECONDITION, str(error)
    if isinstance(error, UsageError | DecodeError):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, TimeoutError):  # also a subclass of OSError
        return grpc.StatusCode.DEADLINE_EXCEEDED, f"{name}: {error}"
    if isinstance(error, OSError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, f"{name}: {error}"
    log.error("%s failed", name, exc_info=error)
    return grpc.StatusCode.INTERNAL, f"{name}: {type(error).__name__}: {error}"


class _Refusal:
    """Rejects a call as soon as its headers have arrived, whatever its method.

    The handler is one for streams, which does not wait for the message: the message may be large,
    or never arrive.
    """

    def __init__(self) -> None:
        # grpc runs the handler in this pool. Rejections therefore use no threads of authenticated
        # clients and do not wait for them.
        self.experimental_thread_pool = ThreadPoolExecutor(1, thread_name_prefix="refusals")

    def __call__(self, _: Any, context: grpc.ServicerContext) -> None:
        context.abort(
            grpc.StatusCode.UNAUTHENTICATED, "wrong or missing key: not a process of this job"
        )


class _TokenCheck(grpc.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._expected = call_key(token).encode()
        self._refuse = grpc.stream_stream_rpc_method_handler(_Refusal())

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        for key, value in details.invocation_metadata:
            if key == "authorization":
                got = value.encode() if isinstance(value, str) else value
                if hmac.compare_digest(got, self._expected):
                    return continuation(details)
        return self._refuse


MOST_PARTS = 1 << 18
"""Largest number of messages and elements of repeated fields in one request."""
_FEW_BYTES = 1 << 16  # a request of this size cannot reach the limit

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_EIGHT = (
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED64,
)
_FOUR = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)


def require_few(kind: Any, raw: bytes) -> None:
    """Check the number of parts of an encoded message.

    Args:
        kind: descriptor of the message.

    Raises:
        UsageError: the message has more than :data:`MOST_PARTS` parts.
        DecodeError: the bytes are not a message of this type.
    """
    if len(raw) <= _FEW_BYTES:
        return
    left, nested = MOST_PARTS, [(kind, 0, len(raw))]
    try:
        while nested:
            each, at, end = nested.pop()
            fields = each.fields_by_number
            while at < end:
                key, at = _varint(raw, at)
                field, form = fields.get(key >> 3), key & 7
                if field is not None and (field.is_repeated or field.message_type is not None):
                    left -= 1
                if form == _BYTES:
                    size, at = _varint(raw, at)
                    if field is not None and field.message_type is not None:
                        nested.append((field.message_type, at, at + size))
                    elif field is not None and field.is_repeated and field.type not in _TEXTS:
                        left -= _packed(field, size)
                    at += size
                elif form == _VARINT:
                    _, at = _varint(raw, at)
                elif form in (_FIXED64, _FIXED32):
                    at += 8 if form == _FIXED64 else 4
                else:
                    raise DecodeError(f"a field of the form {form}")
                if left < 0:
                    raise UsageError(
                        f"{kind.name}: more than {MOST_PARTS} parts; send fewer at once"
                    )
            if at > end:
                raise DecodeError("a field beyond the end of its message")
    except IndexError:
        raise DecodeError("the message is cut off") from None


def _packed(field: FieldDescriptor, size: int) -> int:
    """Return the largest number of elements of a packed field in ``size`` bytes."""
    return size // (8 if field.type in _EIGHT else 4 if field.type in _FOUR else 1)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return its value and the position after it."""
    value = raw[at]
    at += 1
    if value < 0x80:
        return value, at
    value, shift = value & 0x7F, 7
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise DecodeError("a number of more than 64 bits")

"""Server side of gRPC services: token check, size limits, errors as status codes."""

from __future__ import annotations

import hmac
import logging
import resource
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from torch_edl.errors import StaleIncarnationError, UsageError
from torch_edl.wire import keepalive
from torch_edl.wire.channel import COMMON_OPTIONS, MAX_MESSAGE_BYTES, request_limit
from torch_edl.wire.endpoint import is_remote
from torch_edl.wire.parts import require_few
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
        maximum_concurrent_rpcs=threads + MAX_WAITING_CALLS,
    )
    for service in services:
        answering = {m.name: _answering(m, handlers[m.name]) for m in service.methods}
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


def _answering(method: MethodDescriptor, handler: Handler) -> grpc.RpcMethodHandler[Any, Any]:
    parse: Callable[[bytes], Any] = GetMessageClass(method.input_type).FromString

    def answer(raw: bytes, context: grpc.ServicerContext) -> Any:
        require_few(method.input_type, raw)
        return handler(parse(raw), context)

    return grpc.unary_unary_rpc_method_handler(
        _guarded(method.name, answer), response_serializer=_encode
    )


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


def _guarded(name: str, handler: Handler) -> Handler:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return handler(request, context)
        except Exception as error:
            context.abort(*status_of(name, error))

    return call


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

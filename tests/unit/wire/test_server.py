"""Callers with a certificate of the job and without its key, as one of another job with the same
folder of certificates: they are refused by their headers, and cost nobody anything."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator

import grpc
import pytest

from tests.unit.wire.watched import Server, running
from tests.waiting import HANG_S
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import MAX_MESSAGE_BYTES, Stub, request_limit
from torch_edl.wire.security import certificates
from torch_edl.wire.security.keys import call_key
from torch_edl.wire.server import MAX_CALLS_OF_CONNECTION, MAX_WAITING_CALLS, MOST_PARTS

THREADS = 2
METHOD = "/torch_edl.Control/Stop"

# GetStatus answers at once; Stop not before standard input is closed.
PROGRAM = f"""
import sys, threading
from torch_edl.wire import master_pb2 as pb, services
from torch_edl.wire.server import serve
closed = threading.Event()
handlers = dict.fromkeys(services.methods(services.CONTROL), lambda r, c: None)
handlers["GetStatus"] = lambda r, c: pb.GetStatusResponse(job="j")
handlers["Stop"] = lambda r, c: (closed.wait(), pb.StopResponse())[1]
where = "127.0.0.1:0"
server, port = serve(services.CONTROL, handlers, address=where, token="t", threads={THREADS})
print(port, flush=True)
sys.stdin.read()
closed.set()
server.stop(1).wait()
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with running(PROGRAM) as made:
        yield made


@pytest.fixture
def friend(server: Server) -> Iterator[Stub]:
    stub = Stub(services.CONTROL, server.address, "t")
    yield stub
    stub.close()


@contextlib.contextmanager
def stranger(address: str) -> Iterator[grpc.Channel]:
    options: list[tuple[str, object]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    own = certificates.of_token("t")
    credentials = grpc.ssl_channel_credentials(own.ca, own.key, own.certificate)
    options.append(("grpc.ssl_target_name_override", own.host))
    with grpc.secure_channel(address, credentials, options) as channel:
        yield channel


def test_calls_of_headers_only_hold_no_thread(server: Server, friend: Stub) -> None:
    ended = threading.Event()

    def nothing() -> Iterator[bytes]:
        ended.wait()
        yield from ()

    with stranger(server.address) as channel:
        send = channel.stream_unary(METHOD)
        calls = [send.future(nothing(), timeout=HANG_S) for _ in range(40 * THREADS)]
        codes = {call.code() for call in calls}
        answer = friend.call(pb.GetStatusRequest(), timeout_s=HANG_S)
        ended.set()
    assert answer.job == "j"
    # UNAVAILABLE: a stream above the limit of a connection, before the client knew the limit.
    assert grpc.StatusCode.UNAUTHENTICATED in codes
    assert codes <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}


def test_a_large_message_is_refused_before_it_is_read(server: Server, friend: Stub) -> None:
    friend.call(pb.GetStatusRequest(), timeout_s=HANG_S)
    before = server.peak_mib
    with stranger(server.address) as channel:
        call = channel.unary_unary(METHOD)
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                call(bytes(200 << 20), timeout=HANG_S)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert server.peak_mib - before < 40
    assert friend.call(pb.GetStatusRequest(), timeout_s=HANG_S).job == "j"


def test_calls_in_flight_are_bounded(server: Server) -> None:
    """Callers who have the token, too, and are refused rather than queued without end."""
    token = (("authorization", call_key("t")),)
    done: queue.SimpleQueue[grpc.Future] = queue.SimpleQueue()
    connections = 1 + (MAX_WAITING_CALLS + 2 * THREADS) // MAX_CALLS_OF_CONNECTION
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(connections):
            call = stack.enter_context(stranger(server.address)).unary_unary(METHOD)
            calls += [
                call.future(b"", timeout=HANG_S, metadata=token, wait_for_ready=True)
                for _ in range(MAX_CALLS_OF_CONNECTION)
            ]
        for each in calls:
            each.add_done_callback(done.put)
        assert done.get(timeout=HANG_S).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for each in calls:
            each.cancel()


def test_a_request_that_is_too_large_for_the_master_is_named(server: Server, friend: Stub) -> None:
    large = pb.StopRequest(reason="x" * request_limit(services.CONTROL)[0])
    with pytest.raises(UsageError, match=r"^Stop: the request has 67108.* --records-per-task"):
        friend.call(large, timeout_s=HANG_S)
    token = (("authorization", call_key("t")),)
    with stranger(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(METHOD)(large.SerializeToString(), timeout=HANG_S, metadata=token)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert request_limit(services.CONTROL)[0] < MAX_MESSAGE_BYTES


def test_a_request_of_many_empty_parts_is_rejected_before_it_is_decoded(
    server: Server, friend: Stub
) -> None:
    """Two bytes each on the wire, and a hundred times as much in memory."""
    friend.call(pb.GetStatusRequest(), timeout_s=HANG_S)
    before = server.peak_mib
    with pytest.raises(grpc.RpcError) as caught:
        friend._methods["AddEvents"](
            b"\x12\x00" * 5_000_000, timeout=HANG_S, metadata=friend._metadata
        )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == (
        f"AddEventsRequest: more than {MOST_PARTS} parts; send fewer at once"
    )
    assert server.peak_mib - before < 60
    assert friend.call(pb.GetStatusRequest(), timeout_s=HANG_S).job == "j"

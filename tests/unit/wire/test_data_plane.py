"""Calls with frames: over a Unix socket and over encrypted TCP, and what strangers may send."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import zmq

from tests.waiting import HANG_S
from torch_edl.errors import StaleIncarnationError, UsageError
from torch_edl.wire import codec
from torch_edl.wire import data_plane_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire.channel import CallError
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane import server as data_server
from torch_edl.wire.data_plane import sockets
from torch_edl.wire.data_plane.server import MOST_FRAMES, DataServer, WouldWaitError
from torch_edl.wire.data_plane.sockets import MAX_FRAME_BYTES, PIECE_BYTES, Keys
from torch_edl.wire.data_plane.stub import DataStub

TOKEN = "secret"
CODES = grpc.StatusCode


class Echo:
    """Answers a pull with the ids of its tables as vectors; pushes wait for :attr:`gate`."""

    def __init__(self, endpoint: str, threads: int = 4) -> None:
        self.gate = threading.Event()
        self.pushes = 0
        answers = {"pull": self._pull, "push_gradients": self._push}
        self.server = DataServer(answers, endpoint=endpoint, token=TOKEN, threads=threads)
        self.endpoint = self.server.endpoint

    def _pull(self, given: Framed, _may_wait: bool) -> Framed:
        if given.message.read_only:
            raise StaleIncarnationError("of another life")
        answer = Framed(ps.PullResponse(initialized=True, version=given.message.dense_version))
        before: list[bytes | memoryview] = []
        for entry in given.message.tables:
            before.append(codec.entry_ids(entry, before, given.frames))
            answer.put(answer.message.vectors.add(), codec.ids_from_bytes(before[-1]))
        return answer

    def _push(self, given: Framed, may_wait: bool) -> Framed:
        if not may_wait:
            raise WouldWaitError
        self.pushes += 1
        self.gate.wait(HANG_S)
        return Framed(ps.PushGradientsResponse(accepted=True))


@pytest.fixture(params=["ipc", "tcp"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/socket" if request.param == "ipc" else "tcp://127.0.0.1:*"


@pytest.fixture
def echo(where: str) -> Iterator[Echo]:
    made = Echo(where)
    yield made
    made.gate.set()
    made.server.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., DataStub]]:
    stubs: list[DataStub] = []

    def made(endpoint: str, token: str = TOKEN) -> DataStub:
        stubs.append(DataStub(endpoint, token))
        return stubs[-1]

    yield made
    for stub in stubs:
        stub.close()


def pull(stub: DataStub, *ids: np.ndarray, timeout_s: float = 20, **fields: Any) -> list[Any]:
    call = Framed(ps.PullRequest(**fields))
    for each in ids:
        call.put_ids(call.message.tables.add(name="t"), each)
    answer = stub.call(call, timeout_s=timeout_s)
    return [codec.from_proto(v, answer.frames) for v in answer.message.vectors]


def push(stub: DataStub, timeout_s: float = 20) -> bool:
    call = Framed(ps.PushGradientsRequest())
    return bool(stub.call(call, timeout_s=timeout_s).message.accepted)


def refused(call: Callable[[], object]) -> tuple[CODES, str]:
    with pytest.raises(CallError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def test_frames_arrive_as_they_were_sent(echo: Echo, connect: Callable[..., DataStub]) -> None:
    stub, rng = connect(echo.endpoint), np.random.default_rng(1)
    for sizes in ([], [0], [1], [3, 0, 5], [1000, 1], [8191, 8192, 8193], [1_000_000, 7]):
        ids = [rng.integers(-(2**63), 2**63, n) for n in sizes]
        found = pull(stub, *ids)
        assert [f.tolist() for f in found] == [i.tolist() for i in ids]
        assert all(f.flags.aligned for f in found)


def test_errors_have_their_codes(echo: Echo, connect: Callable[..., DataStub]) -> None:
    stub = connect(echo.endpoint)
    stale = refused(lambda: pull(stub, read_only=True))
    assert stale == (CODES.FAILED_PRECONDITION, "of another life")
    for place in (2, -1, 2**31 - 1):
        call = Framed(ps.PullRequest())
        call.put_ids(call.message.tables.add(name="t"), np.arange(3))
        call.message.tables[0].ids_frame = place
        code, text = refused(lambda call=call: stub.call(call, timeout_s=HANG_S))  # type: ignore[misc]
        assert (code, text) == (CODES.INVALID_ARGUMENT, f"frame {place}: the message has 1")
    odd = Framed(ps.PullRequest(tables=[ps.TableIds(name="t", ids_frame=1)]))
    odd.frames.append(memoryview(b"1234567"))
    assert "not a whole number" in refused(lambda: stub.call(odd, timeout_s=HANG_S))[1]
    assert pull(stub, np.arange(3))[0].tolist() == [0, 1, 2]


def test_without_the_token_nobody_is_served(echo: Echo, connect: Callable[..., DataStub]) -> None:
    stranger = connect(echo.endpoint, "another token")
    code, _ = refused(lambda: push(stranger))
    local = echo.endpoint.startswith("ipc")
    assert code is (CODES.UNAUTHENTICATED if local else CODES.UNAVAILABLE)
    assert echo.pushes == 0
    assert len(pull(connect(echo.endpoint), np.arange(3))) == 1


def test_a_server_without_encryption_is_not_believed(connect: Callable[..., DataStub]) -> None:
    """One that took the port of ours."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.linger = 0
        port = other.bind_to_random_port("tcp://127.0.0.1")
        stub = connect(f"tcp://127.0.0.1:{port}")
        assert refused(lambda: pull(stub))[0] is CODES.UNAVAILABLE
        assert not other.poll(0)


def test_a_server_that_is_not_there_is_noticed_at_once(
    where: str, connect: Callable[..., DataStub]
) -> None:
    stub = connect(where.replace("*", "1"))
    for _ in range(2):
        code, text = refused(lambda: pull(stub, timeout_s=10 * HANG_S))
        assert (code, "no connection to" in text) == (CODES.UNAVAILABLE, True)


def test_a_server_that_is_back_is_called_again(
    where: str, connect: Callable[..., DataStub]
) -> None:
    first = Echo(where)
    stub = connect(first.endpoint)
    pull(stub)
    first.server.close()
    assert refused(lambda: pull(stub))[0] is CODES.UNAVAILABLE
    second = Echo(first.endpoint)
    assert len(pull(stub, np.arange(2))) == 1
    second.server.close()


SERVER = """
import sys, time
from torch_edl.wire.data_plane.server import DataServer
server = DataServer({"pull": lambda given, may_wait: time.sleep(1000)}, endpoint=sys.argv[1],
                    token="secret", threads=2)
print(server.endpoint, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_dies_within_a_call_is_noticed_at_once(
    where: str, connect: Callable[..., DataStub], by: signal.Signals
) -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVER, where], stdout=subprocess.PIPE)
    assert process.stdout is not None
    stub = connect(process.stdout.readline().decode().strip())
    with ThreadPoolExecutor(1) as caller:
        call = caller.submit(refused, lambda: pull(stub, timeout_s=HANG_S))
        with pytest.raises(TimeoutError):
            call.result(0.3)
        process.send_signal(by)
        assert call.result(HANG_S)[0] is CODES.UNAVAILABLE
    process.wait()
    process.stdout.close()


def test_calls_are_answered_out_of_order(echo: Echo, connect: Callable[..., DataStub]) -> None:
    stub = connect(echo.endpoint)
    slow = stub.start(Framed(ps.PushGradientsRequest()), timeout_s=HANG_S)
    ahead = [
        stub.start(Framed(ps.PullRequest(dense_version=n)), timeout_s=HANG_S) for n in range(3)
    ]
    assert [call.result().message.version for call in reversed(ahead)] == [2, 1, 0]
    assert all(call.done() for call in ahead)
    assert not slow.done()
    echo.gate.set()
    while not slow.done():
        time.sleep(0)
    assert slow.result().message.accepted


def test_a_thread_takes_the_answers_of_others(echo: Echo, connect: Callable[..., DataStub]) -> None:
    stub = connect(echo.endpoint)
    slow = stub.start(Framed(ps.PushGradientsRequest()), timeout_s=HANG_S)
    quick = stub.start(Framed(ps.PullRequest(dense_version=3)), timeout_s=HANG_S)
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(slow.result)
        while not quick.has_ended:
            assert not waits.done()
        assert quick.result().message.version == 3
        echo.gate.set()
        assert waits.result(HANG_S).message.accepted


def test_a_deadline_ends_the_connection_and_the_calls_on_it(
    echo: Echo, connect: Callable[..., DataStub]
) -> None:
    """The answer that comes late is not that of a later call."""
    stub = connect(echo.endpoint)
    late = stub.start(Framed(ps.PushGradientsRequest()), timeout_s=0.2)
    other = stub.start(Framed(ps.PushGradientsRequest()), timeout_s=HANG_S)
    assert refused(late.result)[0] is CODES.DEADLINE_EXCEEDED
    assert other.done()
    assert refused(other.result)[0] is CODES.UNAVAILABLE
    echo.gate.set()
    for n in range(5):
        assert pull(stub, np.arange(n))[0].tolist() == list(range(n))


def test_closing_ends_a_call(echo: Echo, connect: Callable[..., DataStub]) -> None:
    stub = connect(echo.endpoint)
    with ThreadPoolExecutor(1) as caller:
        call = caller.submit(refused, lambda: push(stub, timeout_s=HANG_S))
        with pytest.raises(TimeoutError):
            call.result(0.2)
        stub.close()
        assert call.result(HANG_S)[0] is CODES.CANCELLED
    assert refused(lambda: pull(stub))[0] is CODES.CANCELLED


def test_a_server_that_ends_answers_the_calls_that_run(where: str) -> None:
    echo = Echo(where)
    stub = DataStub(echo.endpoint, TOKEN)
    with ThreadPoolExecutor(2) as callers:
        call = callers.submit(push, stub)
        while not echo.pushes:
            assert not call.done()
        ended = callers.submit(echo.server.close, 20)
        with pytest.raises(TimeoutError):
            ended.result(0.2)
        echo.gate.set()
        assert call.result(HANG_S)
        ended.result(HANG_S)
    assert refused(lambda: pull(stub))[0] is CODES.UNAVAILABLE
    stub.close()


def test_the_answer_to_the_call_that_ends_a_server_arrives(where: str) -> None:
    closed: list[threading.Thread] = []

    def pull_last(given: Framed, _may_wait: bool) -> Framed:
        closed.append(threading.Thread(target=server.close))
        closed[0].start()
        while not server._closing:  # it is closed while the call runs
            time.sleep(0)
        return Framed(ps.PullResponse(version=7))

    server = DataServer({"pull": pull_last}, endpoint=where, token=TOKEN, threads=1)
    stub = DataStub(server.endpoint, TOKEN)
    answer = stub.call(Framed(ps.PullRequest()), timeout_s=HANG_S)
    assert answer.message.version == 7
    closed[0].join(HANG_S)
    stub.close()


def test_calls_that_wait_keep_no_other_from_its_answer(where: str) -> None:
    echo = Echo(where, threads=8)
    stubs = [DataStub(echo.endpoint, TOKEN) for _ in range(7)]
    with ThreadPoolExecutor(7) as callers:
        waiting = [callers.submit(push, stub) for stub in stubs]
        other = DataStub(echo.endpoint, TOKEN)
        for n in range(20):
            assert pull(other, np.arange(n))[0].tolist() == list(range(n))
        assert not any(call.done() for call in waiting)
        echo.gate.set()
        assert all(call.result(HANG_S) for call in waiting)
    for stub in [*stubs, other]:
        stub.close()
    echo.server.close()


def test_stubs_that_are_dropped_keep_no_other_from_its_answer(where: str) -> None:
    """In any thread, while others call and servers end."""

    def drop(endpoint: str) -> int:
        return len(pull(DataStub(endpoint, TOKEN), np.arange(100_000)))

    for _ in range(15):
        echo = Echo(where, threads=8)
        with ThreadPoolExecutor(8) as callers:
            assert set(callers.map(drop, [echo.endpoint] * 24)) == {1}
        echo.server.close()


def raw(echo: Echo) -> zmq.Socket[bytes]:
    """A caller who has the token, and sends what it likes."""
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger = 0
    Keys.of(TOKEN).secure_client(dealer, echo.endpoint)
    dealer.connect(echo.endpoint)
    return dealer


def test_frames_of_chance_are_the_senders_error(
    echo: Echo, connect: Callable[..., DataStub]
) -> None:
    chance = random.Random(3)
    stub = connect(echo.endpoint)
    with raw(echo) as dealer:
        for _ in range(300):
            frames = [chance.randbytes(chance.randrange(64)) for _ in range(chance.randrange(1, 6))]
            dealer.send_multipart(frames)
            answer = pb.DataAnswer.FromString(dealer.recv_multipart()[0])
            assert answer.code in (CODES.INVALID_ARGUMENT.value[0], CODES.UNAUTHENTICATED.value[0])
    assert len(pull(stub, np.arange(3))) == 1


def test_a_call_that_breaks_a_limit_is_answered_with_the_limit(
    echo: Echo, connect: Callable[..., DataStub], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = pb.DataRequest(key=Keys.of(TOKEN).request, call=7, pull=ps.PullRequest())
    monkeypatch.setattr(sockets, "MAX_FRAME_BYTES", 1 << 20)
    monkeypatch.setattr(sockets, "MAX_CALL_BYTES", 2 << 20)

    def answer(*frames: bytes) -> tuple[int, int, str]:
        dealer.send_multipart([head.SerializeToString(), *frames])
        found = pb.DataAnswer.FromString(dealer.recv())
        return found.call, found.code, found.details

    wrong = (7, CODES.INVALID_ARGUMENT.value[0])
    with raw(echo) as dealer:
        *found, text = answer(*[b""] * MOST_FRAMES)
        assert (*found, str(MOST_FRAMES) in text) == (*wrong, True)
        *found, text = answer(*[bytes(1000)] * 2098)
        assert (*found, str(2 << 20) in text) == (*wrong, True)
        if echo.endpoint.startswith("tcp"):
            *found, text = answer(bytes(PIECE_BYTES))
            assert (*found, "last piece" in text) == (*wrong, True)
        head.ClearField("pull")
        assert answer()[:2] == wrong
    stub = connect(echo.endpoint)
    for sizes in ([(1 << 20) + 8], [1 << 20] * 2):  # one frame, and all together
        with pytest.raises(UsageError, match="use more --ps"):
            pull(stub, *(np.zeros(size // 8, np.int64) for size in sizes))
    assert len(pull(stub, np.arange(3))) == 1


def test_an_answer_that_is_too_large_is_the_senders_error(
    echo: Echo, connect: Callable[..., DataStub], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Framed(ps.PullRequest())
    call.put_ids(call.message.tables.add(name="t"), np.arange(1 << 16))
    call.message.tables.add(name="u", same_ids_as=1)
    monkeypatch.setattr(sockets, "MAX_FRAME_BYTES", (1 << 19) + 100)
    monkeypatch.setattr(sockets, "MAX_CALL_BYTES", 1 << 20)
    code, text = refused(lambda: connect(echo.endpoint).call(call, timeout_s=HANG_S))
    assert (code, str(1 << 20) in text) == (CODES.INVALID_ARGUMENT, True)


def test_a_size_that_is_only_announced_takes_no_memory(tmp_path: Path) -> None:
    """Connections are closed that announce more than a frame may have, that speak another protocol,
    or say nothing; and nobody else notices."""
    echo = Echo(f"ipc://{tmp_path}/socket")
    path = str(tmp_path / "socket")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x04\x19\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    ready = b"\x04" + bytes([len(ready) - 2]) + ready[2:]
    silent = [socket.socket(socket.AF_UNIX) for _ in range(50)]
    for each in silent:
        each.connect(path)
    for announced in (MAX_FRAME_BYTES + 1, 1 << 40, (1 << 63) - 1):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20)
            peer.connect(path)
            peer.sendall(greeting)
            heard = 0
            while heard < 64:
                heard += len(peer.recv(64 - heard))
            peer.sendall(ready + b"\x02" + announced.to_bytes(8, "big") + bytes(1000))
            while peer.recv(4096):
                pass  # READY, and then the end
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect(path)
        peer.sendall(os.urandom(100_000))
    stub = DataStub(echo.endpoint, TOKEN)
    assert pull(stub, np.arange(3))[0].tolist() == [0, 1, 2]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    stub.close()
    for each in silent:
        each.close()
    echo.server.close()


def test_strangers_at_the_encrypted_port_take_nothing_and_stop_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes of chance; handshakes that are broken, that announce what never comes, or stop."""
    monkeypatch.setattr(data_server, "_HANDSHAKE_MS", 1000)
    echo, chance = Echo("tcp://127.0.0.1:*"), random.Random(5)
    where = ("127.0.0.1", int(echo.endpoint.rpartition(":")[2]))
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    hello = b"\x05HELLO\x01\x00" + bytes(72) + chance.randbytes(32 + 8 + 80)
    stub = DataStub(echo.endpoint, TOKEN)
    assert len(pull(stub, np.arange(3))) == 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = [
        b"",
        greeting[:11],
        greeting,
        greeting + b"\x04" + bytes([len(hello)]) + hello,
        greeting + b"\x06" + (1 << 62).to_bytes(8, "big") + hello,
        greeting.replace(b"CURVE", b"NULL\0"),
        chance.randbytes(50_000),
    ]
    strangers = [socket.create_connection(where, 20) for _ in range(20 * len(sent))]
    for number, each in enumerate(strangers):
        with contextlib.suppress(OSError):
            each.sendall(sent[number % len(sent)])
    for _ in range(3):
        assert len(pull(stub, np.arange(3))) == 1
        other = DataStub(echo.endpoint, TOKEN)
        assert len(pull(other, np.arange(3))) == 1
        other.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    for each in strangers:
        with contextlib.suppress(ConnectionResetError):
            while each.recv(4096):
                pass  # ours speaks first, and then ends it
        each.close()
    assert len(pull(stub, np.arange(3))) == 1
    stub.close()
    echo.server.close()


def test_an_endpoint_that_is_taken_is_named(echo: Echo) -> None:
    if echo.endpoint.startswith("tcp"):
        with pytest.raises(UsageError, match=f"{echo.endpoint}: cannot listen there"):
            Echo(echo.endpoint)

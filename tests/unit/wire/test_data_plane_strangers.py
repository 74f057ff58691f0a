"""Strangers who open many connections to the encrypted port of a server, or announce large frames:
they take few files and little memory, and keep nobody out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.unit.wire.watched import Server, ends, running
from tests.waiting import HANG_S, wait_for
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.sockets import PIECE_BYTES
from torch_edl.wire.data_plane.stub import DataStub
from torch_edl.wire.security.newcomers import MOST_OF_ADDRESS

FILES = 600
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)

# A pull is answered with the ids of its tables; no handshake ends while a test runs.
PROGRAM = f"""
import resource, sys
from tests.unit.wire.test_data_plane import Echo
from torch_edl.wire.data_plane import server as data_server
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES},) * 2)
data_server._HANDSHAKE_MS = 10_000_000
echo = Echo("tcp://127.0.0.1:*")
print(echo.endpoint, flush=True)
sys.stdin.read()
echo.server.close()
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with running(PROGRAM) as made:
        yield made


def pulled(stub: DataStub, ids: int = 3) -> int:
    """How many ids come back."""
    call = Framed(ps.PullRequest())
    call.put_ids(call.message.tables.add(name="t"), np.arange(ids))
    answer = stub.call(call, timeout_s=HANG_S)
    back = codec.from_proto(answer.message.vectors[0], answer.frames)
    np.testing.assert_array_equal(back, np.arange(ids))
    return len(back)


def served(server: Server) -> bool:
    """Whether one who has the token is answered, over a connection of its own."""
    with contextlib.closing(DataStub(server.endpoint, "secret")) as stub:
        return pulled(stub) == 3


@pytest.mark.parametrize("said", [b"", GREETING], ids=["nothing", "greeting"])
def test_connections_of_a_stranger_take_few_files(server: Server, said: bytes) -> None:
    stub = DataStub(server.endpoint, "secret")
    with contextlib.closing(stub), contextlib.ExitStack() as stack:
        assert pulled(stub) == 3
        before = server.files
        strangers = []
        for _ in range(2 * FILES):
            strangers.append(stack.enter_context(server.connect()))
            with contextlib.suppress(OSError):
                strangers[-1].sendall(said)
        assert all(map(ends, strangers[:FILES]))  # the oldest make room
        wait_for(lambda: server.files - before <= MOST_OF_ADDRESS)
        assert pulled(stub) == 3
        assert served(server)


def test_connections_of_members_are_not_closed_however_many_begin_at_once(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        stubs = [
            stack.enter_context(contextlib.closing(DataStub(server.endpoint, "secret")))
            for _ in range(2 * MOST_OF_ADDRESS)
        ]
        for _ in range(2):
            assert {pulled(stub) for stub in stubs} == {3}
        idle = [stack.enter_context(server.connect()) for _ in range(2 * MOST_OF_ADDRESS)]
        assert all(map(ends, idle[:MOST_OF_ADDRESS]))
        before = server.files
        assert {pulled(stub) for stub in stubs} == {3}
        assert server.files <= before  # over the connections that they had


def test_a_frame_that_is_announced_before_the_handshake_takes_no_memory(server: Server) -> None:
    assert served(server)
    before = server.mib
    command = b"\x06" + (1 << 30).to_bytes(8, "big") + b"\x05HELLO"
    for _ in range(20):
        with server.connect() as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(GREETING + command)
                for _ in range(40):
                    stranger.sendall(bytes(1 << 20))
            assert ends(stranger)
    assert served(server)
    assert server.mib - before < 32


@pytest.mark.parametrize("size", [0, PIECE_BYTES - 8, PIECE_BYTES, 2 * PIECE_BYTES, 5_000_000])
def test_frames_of_any_size_arrive_whole(server: Server, size: int) -> None:
    with contextlib.closing(DataStub(server.endpoint, "secret")) as stub:
        assert pulled(stub, size // 8) == size // 8

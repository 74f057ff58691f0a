"""Strangers at the door of a ring of Keras models: they keep no member out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.other_user import as_stranger, needs_root
from tests.waiting import HANG_S
from tf_compat.collectives import stream_listener
from tf_compat.collectives.stream_listener import Purpose, StreamListener
from torch_edl.wire.endpoint import REMOTE
from torch_edl.wire.security.newcomers import MOST, MOST_OF_ADDRESS

TOKEN = "0123456789abcdef" * 2

IDLE = """
name = "\\0" + sys.argv[1]
idle = []
for _ in range(int(sys.argv[2])):
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(name)
    idle.append(stranger)
print("idle", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the end of an idle handshake waits longer than a test may."""
    monkeypatch.setattr(stream_listener, "_HANDSHAKE_S", 10 * HANG_S)


def meets(place: StreamListener, ring: int) -> None:
    """A member of the ring connects and is received."""
    with (
        closing(place.connect(place.address, ring, 1, Purpose.NEXT, HANG_S)),
        closing(
            place.take(
                ring, 1, Purpose.NEXT, deadline=time.monotonic() + HANG_S, gone=threading.Event()
            )
        ),
    ):
        pass


@contextlib.contextmanager
def idle(address: str, count: int) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), HANG_S))
            for _ in range(count)
        ]


@pytest.mark.usefixtures("patient")
def test_idle_handshakes_keep_no_member_of_another_machine_out() -> None:
    """More than there may be, all of the address from which the member comes, too."""
    before = threading.active_count()
    with (
        closing(StreamListener(f"{REMOTE}127.0.0.1", TOKEN)) as place,
        idle(place.address, 2 * MOST) as strangers,
    ):
        meets(place, 1)
        strangers[0].settimeout(HANG_S)
        with contextlib.suppress(ConnectionResetError):
            assert strangers[0].recv(1) == b""  # the oldest makes room
        assert threading.active_count() - before < MOST_OF_ADDRESS + 20


@needs_root
@pytest.mark.usefixtures("patient")
def test_idle_handshakes_of_another_user_keep_no_member_out() -> None:
    with closing(StreamListener("127.0.0.1", TOKEN)) as place:
        name = place.address.partition(":")[2]
        with as_stranger(IDLE, name, str(2 * MOST)) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "idle\n"
            meets(place, 1)
            assert stranger.stdin is not None
            stranger.stdin.close()

"""Streams between processes of a job, and who gets none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest

from tests.waiting import HANG_S
from tf_compat.collectives.streams import MAX_GREETING_BYTES, Door, Stream, connect
from torch_edl.errors import UsageError
from torch_edl.wire.endpoint import REMOTE

TOKEN = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
LOCAL, ENCRYPTED = "127.0.0.1", f"{REMOTE}127.0.0.1"


@pytest.fixture(params=[LOCAL, ENCRYPTED])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    with closing(Door(request.param, TOKEN)) as made:
        yield made


def met(door: Door, greeting: bytes = b"for you") -> tuple[Stream, Stream]:
    """Both ends of a stream."""
    with ThreadPoolExecutor(1) as pool:
        far = pool.submit(connect, door.address, greeting, TOKEN, HANG_S)
        found = door.welcome(door.accept()[0], HANG_S)
        assert found is not None
        assert found[1] == greeting
        return found[0], far.result()


def test_bytes_travel_as_they_are(door: Door) -> None:
    content = np.random.default_rng(0).integers(0, 255, 3_000_000, np.uint8)
    near, far = met(door)
    with closing(near), closing(far), ThreadPoolExecutor(1) as pool:
        sending = pool.submit(far.send, content)
        taken = np.empty_like(content)
        near.receive(taken)
        sending.result()
        assert np.array_equal(taken, content)
        far.close()
        with pytest.raises(OSError, match="closed"):
            near.receive(taken)


def test_what_is_under_way_can_be_ended_from_another_thread(door: Door) -> None:
    near, far = met(door)
    with closing(near), closing(far):
        threading.Timer(0.05, near.interrupt).start()
        with pytest.raises(OSError, match=r".+"):
            near.receive(np.empty(4, np.uint8))
        with pytest.raises(OSError, match=r".+"):
            far.receive(np.empty(4, np.uint8))


def test_a_process_without_the_token_gets_no_stream(door: Door) -> None:
    def strange() -> None:
        with closing(connect(door.address, b"for you", OTHER, HANG_S)) as stream:
            stream.receive(np.empty(1, np.uint8))

    with ThreadPoolExecutor(1) as pool:
        stranger = pool.submit(strange)
        assert door.welcome(door.accept()[0], HANG_S) is None
        with pytest.raises(OSError, match=r".+"):
            stranger.result()


def test_a_door_without_the_token_is_not_told_what_for() -> None:
    with closing(Door(ENCRYPTED, OTHER)) as other, ThreadPoolExecutor(1) as pool:
        caller = pool.submit(connect, other.address, b"for you", TOKEN, HANG_S)
        assert other.welcome(other.accept()[0], HANG_S) is None
        with pytest.raises(OSError, match="certificate"):
            caller.result()


def test_a_process_of_another_user_gets_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Door(LOCAL, TOKEN)) as door, ThreadPoolExecutor(1) as pool:
        uid = os.getuid()
        monkeypatch.setattr("os.getuid", lambda: uid + 1)  # as each sees the other
        caller = pool.submit(connect, door.address, b"for you", TOKEN, HANG_S)
        assert door.welcome(door.accept()[0], HANG_S) is None
        with pytest.raises(OSError, match=f"a process of user {uid}, not of {uid + 1}"):
            caller.result()


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n" * 9, os.urandom(9), bytes(34)], ids=len
)
def test_strangers_are_sent_away(door: Door, said: bytes) -> None:
    with ExitStack() as stack:
        if door.address.startswith("unix-abstract:"):
            stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
            stranger.connect(f"\0{door.address.partition(':')[2]}")
        else:
            host, _, port = door.address.rpartition(":")
            stranger = stack.enter_context(socket.create_connection((host, int(port))))
        stranger.sendall(said)
        assert door.welcome(door.accept()[0], 0.1) is None
        stranger.settimeout(HANG_S)
        with stack:
            try:
                while stranger.recv(4096):
                    pass  # an alert of TLS
            except ConnectionResetError:
                pass


def test_a_token_that_can_be_guessed_opens_no_door_to_other_machines() -> None:
    with pytest.raises(UsageError, match="must have at least"):
        Door(ENCRYPTED, "guess")
    with closing(Door(LOCAL, "guess")):
        pass


def test_a_greeting_has_a_bound() -> None:
    with closing(Door(LOCAL, TOKEN)) as door, pytest.raises(AssertionError):
        connect(door.address, bytes(MAX_GREETING_BYTES + 1), TOKEN, HANG_S)


def test_a_forked_child_does_not_keep_the_stream_of_its_parent(door: Door) -> None:
    near, far = met(door)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the test is over
        os._exit(0)
    try:
        with closing(near):
            far.close()
            with pytest.raises(OSError, match="closed"):
                near.receive(np.empty(1, np.uint8))
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_a_process_waits_for_room_among_those_that_connect() -> None:
    """More connect to a door than its queue has room for; nobody is accepted meanwhile."""
    with closing(Door(LOCAL, TOKEN)) as door, ExitStack() as stack:
        full = False
        while not full:
            stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
            stranger.setblocking(False)
            try:
                stranger.connect(f"\0{door.address.partition(':')[2]}")
            except BlockingIOError:
                full = True
        with pytest.raises(BlockingIOError):
            connect(door.address, b"for you", TOKEN, 0.01)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        member = pool.submit(connect, door.address, b"for you", TOKEN, HANG_S)
        stack.enter_context(door.accept()[0])  # makes room for one
        member.result().close()

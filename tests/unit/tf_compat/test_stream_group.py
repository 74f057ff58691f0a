"""Collectives of arrays: members in threads over real sockets, and processes that are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from tests.warm import FORKS
from tf_compat.collectives.stream_group import StreamGroup
from tf_compat.collectives.stream_listener import Purpose, StreamListener
from torch_edl.engine.ring.replicated import RingBrokenError

HOST, TOKEN = "127.0.0.1", "t"
MEET_S, SOON_S = 20.0, 20.0


@pytest.fixture
def meetings() -> Iterator[Callable[[int], list[StreamListener]]]:
    with ExitStack() as stack:
        yield lambda count: [
            stack.enter_context(closing(StreamListener(HOST, TOKEN))) for _ in range(count)
        ]


def formed(meetings: list[StreamListener], ring: int = 1) -> list[StreamGroup]:
    return together(
        range(len(meetings)),
        lambda rank: StreamGroup(
            meetings[rank], meetings[0].address, ring, rank, len(meetings), meet_s=MEET_S
        ),
    )


def together(members: Any, what: Callable[[Any], Any]) -> list[Any]:
    """What each member has of a collective."""
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(what, members))


def failed(call: Callable[[], object]) -> str:
    with pytest.raises(RingBrokenError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_sums_are_right_and_the_same_bits_in_all_members(
    meetings: Callable[[int], list[StreamListener]], world: int
) -> None:
    random = np.random.default_rng(world)
    groups = formed(meetings(world))
    for length, dtype in [(0, "f4"), (1, "f4"), (7, "f8"), (5000, "f4"), (900_001, "f4")]:
        given = [random.normal(size=length).astype(dtype) for _ in groups]
        sums = [each.copy() for each in given]
        together(groups, lambda group, sums=sums: group.allreduce(sums[group.rank]))
        assert all(each.tobytes() == sums[0].tobytes() for each in sums)
        np.testing.assert_allclose(sums[0], np.sum(given, 0, np.float64), rtol=1e-5, atol=1e-5)
    together(groups, StreamGroup.close)


def test_payloads_come_in_the_order_of_ranks(
    meetings: Callable[[int], list[StreamListener]],
) -> None:
    groups = formed(meetings(3))
    for parts in ([b"", b"1", b"22" * 300_000], [b"", b"", b""]):
        found = together(groups, lambda group, parts=parts: group.gather(parts[group.rank]))
        assert found == [parts] * 3
    together(groups, StreamGroup.close)


def test_one_member_sends_to_another_and_no_third_has_to_take_part(
    meetings: Callable[[int], list[StreamListener]],
) -> None:
    groups = formed(meetings(3))
    content = np.arange(1_000_000, dtype=np.int64).view(np.uint8)
    into = np.empty_like(content)

    def act(group: StreamGroup) -> None:
        for part in (slice(0, 9), slice(9, None)):
            if group.rank == 2:
                group.send(content[part], 0)
            elif group.rank == 0:
                group.receive(into[part], 2)

    together(groups, act)
    assert np.array_equal(into, content)
    together(groups, StreamGroup.close)


def test_members_that_do_not_do_the_same_find_out(
    meetings: Callable[[int], list[StreamListener]],
) -> None:
    groups = formed(meetings(2))
    sizes = [40_000, 40_008]
    errors = together(
        groups,
        lambda group: failed(lambda: group.allreduce(np.ones(sizes[group.rank], np.float32))),
    )
    assert any("bytes from the member before, not" in error for error in errors)
    for group in groups:
        assert failed(lambda group=group: group.allreduce(np.ones(4))) == "the ring is closed"
        group.close()
        group.close()


def test_a_ring_follows_the_one_before_and_hears_nothing_of_it(
    meetings: Callable[[int], list[StreamListener]],
) -> None:
    two = meetings(2)
    groups = formed(two)
    together(groups, StreamGroup.close)
    # A member of the first ring that has heard of no other.
    late = two[1].connect(two[0].address, 1, 1, Purpose.NEXT, SOON_S)
    groups = formed(two, 3)
    with closing(late), pytest.raises(OSError, match="closed"):
        late.receive(np.empty(1, np.uint8))
    # One that has heard of the next ring first: its stream waits for the others.
    early = two[1].connect(two[0].address, 4, 1, Purpose.NEXT, SOON_S)
    sums = [np.full(9, group.rank + 1.0) for group in groups]
    together(groups, lambda group: group.allreduce(sums[group.rank]))
    assert sums[0].tolist() == sums[1].tolist() == [3.0] * 9
    together(groups, StreamGroup.close)
    two[0].enter(4)
    with closing(early):
        taken = two[0].take(4, 1, Purpose.NEXT, deadline=None, gone=threading.Event())
        taken.close()


def test_a_member_that_does_not_come_is_a_ring_that_is_not_formed(
    meetings: Callable[[int], list[StreamListener]],
) -> None:
    one, two, three = meetings(3)
    three.close()

    def form(meeting: StreamListener, store: str, rank: int) -> str:
        return failed(lambda: StreamGroup(meeting, store, 7, rank, 2, meet_s=0.1))

    assert form(one, one.address, 0) == "ring 7 was not formed: rank 1 did not connect"
    # Nobody listens there, or somebody who is in no ring.
    assert "ring 7 was not formed: " in form(two, three.address, 1)
    assert "ring 7 was not formed: " in form(two, one.address, 1)


@pytest.mark.parametrize("what", ["allreduce", "gather", "receive"])
def test_the_word_of_the_master_ends_what_waits(
    meetings: Callable[[int], list[StreamListener]], what: str
) -> None:
    groups = formed(meetings(3))
    large = np.ones(5_000_000, np.float32)
    waits = {
        "allreduce": lambda: groups[0].allreduce(large),
        "gather": lambda: groups[0].gather(b"x"),
        "receive": lambda: groups[0].receive(large.view(np.uint8), 1),
    }
    threading.Timer(0.1, groups[0].interrupt).start()
    assert failed(waits[what])
    # The others hear of it from their neighbours, around the ring.
    for group in groups[1:]:
        assert failed(lambda group=group: group.allreduce(np.ones(4)))
        group.close()
    groups[0].close()


# ---- processes ----


def train(pipe: Connection, rank: int, world: int) -> None:
    with closing(StreamListener(HOST, TOKEN)) as meeting:
        pipe.send(meeting.address)
        group = StreamGroup(meeting, pipe.recv(), 1, rank, world, meet_s=MEET_S)
        threading.Thread(target=lambda: (pipe.recv(), group.interrupt()), daemon=True).start()
        flat = np.ones(2_000_000, np.float32)
        count = 0
        try:
            while True:
                flat[:] = 1
                group.allreduce(flat)
                count += 1
                pipe.send(count)
        except RingBrokenError as error:
            group.close()
            pipe.send((count, str(error)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_get_out_when_a_member_dies_or_hangs_in_a_sum(number: int) -> None:
    """The master reports a member that hangs; members differ by one step at most."""
    world, victim = 3, 1
    pipes = [FORKS.Pipe() for _ in range(world)]
    processes = [
        FORKS.Process(target=train, args=(pipes[rank][1], rank, world)) for rank in range(world)
    ]
    for process in processes:
        process.start()
    try:
        addresses = [near.recv() for near, _ in pipes]
        for near, _ in pipes:
            near.send(addresses[0])
        near = pipes[victim][0]
        while near.recv() < 5:
            pass
        pid = processes[victim].pid
        assert pid is not None
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(0.1)
            for rank in (0, 2):
                pipes[rank][0].send("stop")
        counts = []
        for rank in (0, 2):
            while not isinstance(said := pipes[rank][0].recv(), tuple):
                pass
            counts.append(said[0])
            assert said[1]
        assert max(counts) - min(counts) <= 1
        assert min(counts) >= 4
    finally:
        for process in processes:
            process.kill()
            process.join()

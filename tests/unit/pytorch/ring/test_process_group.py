"""Sockets of a ring, and how to get out: real processes that are stopped and killed."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.unit.engine.ring.rings import MEET_S, Member, Office, office, run, tcp_sockets
from tests.waiting import HANG_S, is_stopped, wait_for
from torch_edl.engine.ring.membership import synchronize
from torch_edl.engine.ring.rendezvous import local_address
from torch_edl.engine.ring.replicated import RingBrokenError
from torch_edl.pytorch import torch_internals
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring import process_group as group_module
from torch_edl.pytorch.ring.process_group import ProcessGroup, StoreServer
from torch_edl.wire import master_pb2 as pb

CPU = torch.device("cpu")


def formed(
    member: Member, ring: pb.Ring, number: int = 0, *, meet_s: float = MEET_S
) -> ProcessGroup:
    return ProcessGroup(
        ring.store,
        number or ring.number,
        member.rank_in(ring),
        len(ring.workers),
        host=member.host,
        device=CPU,
        meet_s=meet_s,
    )


def started(one: Office, world: int, program: Any, *args: Any) -> list[Any]:
    return [one.start(program, *args) for _ in range(world)]


def collectives(member: Member) -> None:
    ring = member.next(0, -1)
    group = formed(member, ring)
    works, tensors = [], []
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64):
        tensors.append(torch.full((5,), member.rank_in(ring) + 1).to(kind))
        works.append(group.allreduce(tensors[-1]))
    group.wait(works)
    assert all(t.tolist() == [6.0] * 5 for t in tensors)
    for source in range(3):
        value = torch.full((3,), float(member.rank_in(ring)))
        group.broadcast(value, source)
        assert value.tolist() == [float(source)] * 3
    # Parts of different lengths, one of them empty.
    assert group.gather(b"ab" * member.rank_in(ring)) == [b"", b"ab", b"abab"]


def test_sums_copies_and_parts_of_all_members() -> None:
    run(collectives, world=3)


def large_parts(member: Member) -> None:
    group_module._PIECE_BYTES = 3
    ring = member.next(0, -1)
    rank = member.rank_in(ring)
    assert formed(member, ring).gather(b"abcdefgh"[: 3 * rank]) == [b"", b"abc", b"abcdef"]


def test_parts_that_are_too_large_for_one_message() -> None:
    run(large_parts, world=3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_what_was_interrupted_on_a_gpu_is_no_sum() -> None:
    """NCCL ends an aborted collective without an error; one GPU is enough for a ring of one."""
    store = StoreServer("127.0.0.1")
    gpu = torch.device("cuda", 0)
    group = ProcessGroup(store.address, 1, 0, 1, host="127.0.0.1", device=gpu, meet_s=MEET_S)
    value = torch.full((5,), 3.0, device=gpu)
    group.wait([group.allreduce(value)])
    assert value.tolist() == [3.0] * 5
    work = group.allreduce(value)
    group.interrupt()
    with pytest.raises(RingBrokenError):
        group.wait([work])
    group.close()


# ---- a peer that does not answer ----


def stuck(member: Member) -> None:
    group = formed(member, member.next(0, -1))
    member.tell(group.rank)
    member.hear()  # until the peer is stopped
    interrupted: list[bool] = []

    def interrupt() -> None:
        interrupted.append(True)
        group.interrupt()

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(RingBrokenError):
        group.wait([group.allreduce(torch.ones(1 << 20))])
    assert interrupted
    group.close()
    timer.join()
    member.tell("closed")
    member.hear()


def test_interrupt_ends_a_collective_with_a_stopped_peer() -> None:
    """The remedy: ``ProcessGroup.interrupt`` shuts the ring's sockets down, which gloo's own abort
    and shutdown do not."""
    with office(3) as one:
        members = started(one, 3, stuck)
        for each in members:
            each.hear()
        members[2].signal(signal.SIGSTOP)
        for each in members[:2]:
            each.tell("continue")
        for each in members[:2]:
            assert each.hear() == "closed"


def half_sent(member: Member) -> None:
    """Rank 1 is stopped before it reads what rank 0 sends."""
    group = formed(member, member.next(0, -1))
    content = np.ones(64 << 20, np.uint8)
    before = {fd for fd in group._names if os.path.exists(f"/proc/self/fd/{fd}")}
    if group.rank == 0:
        member.tell(0)
        member.hear()
        threading.Thread(target=tell_when_full, args=(member, group, before)).start()
        with pytest.raises(RingBrokenError):
            group.send(content, 1)
    else:
        work = group._of(torch.from_numpy(content)).recv([torch.from_numpy(content)], 0, 0)
        threading.Thread(target=interrupt_when_told, args=(member, group)).start()
        member.tell(1)
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(RingBrokenError):
            group._wait_beside(work)
    group.close()
    member.tell("over")
    member.hear()


class Counted(Replica):
    """Counts the copies of its state."""

    copies = 0

    def outgoing(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        self.copies += 1
        return super().outgoing()


def shared_state(member: Member) -> None:
    """Rank 1 has trained; its model is larger than one chunk."""
    group = formed(member, member.next(0, -1))
    model = torch.nn.Linear(2000, 2000)
    torch.nn.init.constant_(model.weight, group.rank)
    replica = Counted(model, [])
    replica.position.step = group.rank % 2
    synchronize(group, replica, replica.position.progress)
    assert (model.weight == 1).all()
    assert replica.position.step == 1
    assert replica.copies == group.rank % 2
    group.close()


def test_a_state_is_copied_once_for_all_that_receive_it() -> None:
    run(shared_state, world=3)


def tell_when_full(member: Member, group: ProcessGroup, fds: set[int]) -> None:
    def unsent(fd: int) -> int:
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    wait_for(lambda: any(unsent(fd) for fd in fds))
    member.tell("full")
    interrupt_when_told(member, group)


def interrupt_when_told(member: Member, group: ProcessGroup) -> None:
    member.hear()
    group.interrupt()


@pytest.mark.parametrize("killed", [0, 1])
def test_interrupt_ends_a_transfer_that_was_cut_in_the_middle(killed: int) -> None:
    """The remedy: ``ProcessGroup._wait_beside``. Gloo's own wait never ends."""
    with office(2) as one:
        members = started(one, 2, half_sent)
        ranks = {each.hear(): each for each in members}
        wait_for(lambda: is_stopped(ranks[1].process.pid), "rank 1 stops")
        ranks[0].tell("send")
        assert ranks[0].hear() == "full"
        ranks[killed].kill()
        survivor = ranks[1 - killed]
        survivor.signal(signal.SIGCONT)
        survivor.tell("interrupt")
        assert survivor.hear() == "over"
        survivor.tell("end")
        survivor.process.join(HANG_S)
        assert survivor.process.exitcode == 0


def late(member: Member) -> None:
    group = formed(member, member.next(0, -1))
    group.gather(b"x")
    group.interrupt()
    with pytest.raises(RingBrokenError):
        group.gather(b"x")
    group.close()


@pytest.mark.parametrize("attempt", range(4))
def test_a_collective_after_an_interrupt_ends(attempt: int) -> None:
    """The remedy: ``ProcessGroup._wait_in_slices``. Gloo's own wait often does not end."""
    run(late, world=2)


def killed_peer(member: Member) -> None:
    group = formed(member, member.next(0, -1))
    member.tell(group.rank)
    with pytest.raises(RingBrokenError):
        group.wait([group.allreduce(torch.ones(10))])
    member.tell("noticed")
    member.hear()


def bystander(member: Member) -> None:
    group = formed(member, member.next(0, -1))
    member.tell("there")
    member.hear()
    group.close()


def test_a_killed_peer_is_noticed() -> None:
    with office(2) as one:
        first, second = one.start(killed_peer), one.start(bystander)
        first.hear()
        second.hear()
        second.kill()
        assert first.hear() == "noticed"


def with_workers(member: Member) -> None:
    """Its DataLoader has processes of its own, forked while the ring is there."""
    group = formed(member, member.next(0, -1))
    loader = DataLoader(
        TensorDataset(torch.arange(100)), num_workers=2, multiprocessing_context="fork"
    )
    batches = iter(loader)
    next(batches)
    member.tell([w.pid for w in batches._workers])  # type: ignore[attr-defined]
    member.hear()
    group.close()


def with_child(member: Member) -> None:
    """A process that it forks while the ring is there lives on."""
    group = formed(member, member.next(0, -1))
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.write(tell, b"!")  # what happens at a fork has happened
        signal.pause()
    os.read(told, 1)
    member.tell([child])
    member.hear()
    group.close()


@pytest.mark.parametrize("program", [with_workers, with_child])
def test_processes_of_a_killed_member_do_not_keep_the_ring_alive(program: Any) -> None:
    """The remedy: ``os.register_at_fork`` with ``ProcessGroup.forget``. Without it a child has the
    sockets open, and the others see no end for as long as it lives."""
    with office(2) as one:
        first, second = one.start(killed_peer), one.start(program)
        first.hear()
        children = second.hear()
        try:
            # A stopped child cannot end by itself because its parent is gone.
            for pid in children:
                os.kill(pid, signal.SIGSTOP)
            second.kill()
            assert first.hear() == "noticed"
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)


# ---- nothing is left of a ring ----


def failure_of(group: ProcessGroup) -> str:
    try:
        group.wait([group.allreduce(torch.ones(10))])
    except RingBrokenError as error:
        return str(error)
    return ""


def closed(member: Member) -> None:
    before = len(tcp_sockets())
    group = formed(member, member.next(0, -1))
    assert len(tcp_sockets()) > before
    member.tell(group.rank)
    if group.rank == 1:
        member.hear()
    try:
        raise ValueError("of the script's own")
    except ValueError:
        # A script may train in such a clause: what is raised in it refers to the error.
        why = failure_of(group)
        group.close()
        del group
        wait_for(lambda: len(tcp_sockets()) <= before)
    member.tell(why)
    member.hear()


def test_no_socket_of_a_broken_ring_stays_open_while_its_error_is_handled() -> None:
    """The remedies: only the text of an error is kept, and ``close`` drops the group; a work or a
    traceback that holds one keeps its sockets open."""
    with office(2) as one:
        members = started(one, 2, closed)
        ranks = [each.hear() for each in members]
        members[ranks.index(1)].kill()
        assert members[ranks.index(0)].hear()


def again(member: Member, rings: int) -> None:
    ring = member.next(0, -1)
    connect = torch_internals.make_gloo

    def told(*args: Any) -> Any:
        member.tell("forming")
        return connect(*args)

    torch_internals.make_gloo = told
    for number in range(rings):
        if member.rank_in(ring):
            # The other one is there first, and may find what this one wrote the last time.
            member.hear()
        group = formed(member, ring, ring.number + number)
        assert group.gather(bytes([number])) == [bytes([number])] * 2
        group.close()
    member.tell("ok")
    member.hear()


def test_keys_of_an_old_ring_do_not_disturb_the_next() -> None:
    """The remedy: the store's prefix has the number of the ring."""
    with office(2) as one:
        members = started(one, 2, again, 4)
        wait_for(lambda: bool(one.seats))
        first, second = (members[worker] for worker in one.seats[0].workers)
        for _ in range(4):
            assert first.hear() == "forming"
            second.tell("continue")
            assert second.hear() == "forming"
        assert first.hear() == second.hear() == "ok"


def forming(member: Member) -> None:
    ring = member.next(0, -1)
    if member.rank_in(ring) == 1:
        member.tell("dead")
        member.hear()
    with pytest.raises(RingBrokenError, match="was not formed"):
        formed(member, ring, meet_s=0.5)
    ring = member.next(ring.number, 0)
    group = formed(member, ring)
    assert group.gather(b"x") == [b"x"] * 2
    member.tell("formed")
    member.hear()


def test_a_member_that_dies_while_the_ring_is_formed_holds_the_others_up_for_a_while() -> None:
    with office(3) as one:
        members = started(one, 3, forming)
        wait_for(lambda: bool(one.seats))
        dead = one.seats[0].workers[1]
        assert members[dead].hear() == "dead"
        members[dead].kill()
        for each in members:
            if each.worker != dead:
                assert each.hear() == "formed"


# ---- who may connect ----


def listening(member: Member) -> None:
    group = formed(member, member.next(0, -1))
    ours = [fields[1].split(":") for fields in tcp_sockets() if fields[3] == "0A"]
    assert len(ours) >= 2  # the store and gloo
    assert {address for address, _ in ours} == {"0100007F"}
    assert group.size == 2


def test_a_ring_on_one_machine_listens_on_the_loopback_address_only() -> None:
    """The remedy: ``master_listen_fd``; a store that binds by itself is open to all interfaces."""
    run(listening, world=2)


def test_the_address_towards_loopback_is_loopback() -> None:
    assert local_address("127.0.0.1") == "127.0.0.1"
    assert local_address("localhost") == "127.0.0.1"


def test_a_closed_group_says_so() -> None:
    store = StoreServer("127.0.0.1")
    group = ProcessGroup(store.address, 1, 0, 1, host="127.0.0.1", device=CPU)
    group.wait([group.allreduce(torch.ones(2))])
    group.close()
    group.close()
    group.interrupt()
    with pytest.raises(RingBrokenError, match="closed"):
        group.allreduce(torch.ones(2))


def test_a_store_that_is_not_there_is_a_ring_that_is_not_formed() -> None:
    with pytest.raises(RingBrokenError, match="was not formed"):
        ProcessGroup("127.0.0.1:1", 1, 0, 2, host="127.0.0.1", device=CPU, meet_s=10 * HANG_S)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[/__w/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:385. Check the logs",
            "Connection closed by peer [127.0.0.1]:385",
        ),
        ("Timed out after 1.5 s\nException raised from", "Timed out after 1.5 s"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_of_a_broken_ring_is_a_sentence(said: str, told: str) -> None:
    with pytest.raises(RingBrokenError) as caught, group_module._broken_ring():
        raise RuntimeError(said)
    assert str(caught.value) == told

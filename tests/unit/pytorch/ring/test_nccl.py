"""A ring over NCCL, and how to get out of it: real processes that are stopped and killed.

NCCL refuses two processes of one machine on one GPU. Here each process is a machine of its own to
NCCL, so one GPU is enough; they are connected by sockets, as two machines are.
"""

from __future__ import annotations

import os
import signal

import pytest
import torch

from tests.unit.engine.ring.rings import MEET_S, Member, Office, Running, office
from tests.waiting import HANG_S
from torch_edl.engine.ring.replicated import RingBrokenError
from torch_edl.errors import UsageError
from torch_edl.pytorch import torch_internals
from torch_edl.pytorch.ring.process_group import ProcessGroup
from torch_edl.wire import master_pb2 as pb

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
GPU = torch.device("cuda", 0)


def formed(
    member: Member, ring: pb.Ring, *, machine: str = "", meet_s: float = MEET_S
) -> ProcessGroup:
    os.environ |= {"NCCL_HOSTID": machine or f"{member.worker}", "NCCL_SOCKET_IFNAME": "lo"}
    group = ProcessGroup(
        ring.store, ring.number, member.rank_in(ring), len(ring.workers),
        host=member.host, device=GPU, meet_s=meet_s,
    )  # fmt: skip
    member.on_broken_ring = lambda number: group.interrupt()
    member.joined(ring.number, 0)
    return group


def total(group: ProcessGroup) -> float:
    """The sum of rank + 1 over all members."""
    value = torch.full((5,), group.rank + 1.0, device=GPU)
    group.wait([group.allreduce(value)])
    assert len(set(value.tolist())) == 1
    return value[0].item()


def end(members: list[Running]) -> None:
    """Lets programs return; no thread that is left of a broken ring keeps their processes."""
    for each in members:
        each.tell("end")
    for each in members:
        each.process.join(HANG_S)
        assert each.process.exitcode == 0


def collectives(member: Member) -> None:
    group = formed(member, member.next(0, -1))
    works, tensors = [], []
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64):
        tensors.append(torch.full((5,), group.rank + 1, device=GPU).to(kind))
        works.append(group.allreduce(tensors[-1]))
    group.wait(works)
    assert all(t.tolist() == [3.0] * 5 for t in tensors)
    for source in range(2):
        value = torch.full((3,), float(group.rank), device=GPU)
        group.broadcast(value, source)
        assert value.tolist() == [float(source)] * 3
    assert group.gather(b"ab" * group.rank) == [b"", b"ab"]
    group.close()
    member.tell("ok")
    member.hear()


def test_sums_and_copies_of_two_members() -> None:
    with office(2) as one:
        members = [one.start(collectives) for _ in range(2)]
        for each in members:
            assert each.hear() == "ok"
        end(members)


def hurt(one: Office, member: Running, number: signal.Signals) -> None:
    member.signal(number)
    if number is signal.SIGSTOP:
        one.drop(member)


def survivor(member: Member) -> None:
    """The last member is hurt while the others wait for it; they form a ring without it."""
    ring = member.next(0, -1)
    group = formed(member, ring)
    assert total(group) == 6
    member.tell(group.rank)
    if group.rank == 2:
        member.hear()
    with pytest.raises(RingBrokenError):
        total(group)
    group.close()
    member.tell("noticed")
    group = formed(member, member.next(ring.number, 0))
    assert total(group) == 3
    group.close()
    member.tell("ok")
    member.hear()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_members_get_out_of_a_collective_with_a_lost_one(number: signal.Signals) -> None:
    """NCCL's watchdog finds a closed connection before the master tells of it, and none that is
    silent. The remedies: the settings of its threads, and a group that ends in a thread."""
    with office(3) as one:
        members = [one.start(survivor) for _ in range(3)]
        ranks = [each.hear() for each in members]
        lost = members.pop(ranks.index(2))
        hurt(one, lost, number)
        for each in members:
            assert each.hear(MEET_S / 5) == "noticed"
        for each in members:
            assert each.hear() == "ok"
        end(members)


def forming(member: Member) -> None:
    """The last member does not come to NCCL."""
    ring = member.next(0, -1)
    if member.rank_in(ring) == 2:

        def never(*args: object) -> None:
            member.tell("lost")
            member.hear()

        torch_internals.make_nccl = never
    with pytest.raises(RingBrokenError, match="a member did not connect"):
        formed(member, ring, meet_s=2.0)
    member.tell("noticed")
    group = formed(member, member.next(ring.number, 0))
    assert total(group) == 3
    group.close()
    member.tell("ok")
    member.hear()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_is_lost_before_nccl_has_connected(number: signal.Signals) -> None:
    """The remedy: the first collective is part of the meeting, in a thread that may be left."""
    with office(3) as one:
        members = [one.start(forming) for _ in range(3)]
        told = [each.hear() for each in members]
        lost = members.pop(told.index("lost"))
        hurt(one, lost, number)
        for each in members:
            assert each.hear() == "ok"
        end(members)


def same_machine(member: Member) -> None:
    with pytest.raises(UsageError, match="NCCL needs a GPU for each"):
        formed(member, member.next(0, -1), machine="one")
    member.tell("ok")
    member.hear()


def test_two_members_with_one_gpu_are_an_error_of_the_user() -> None:
    with office(2) as one:
        members = [one.start(same_machine) for _ in range(2)]
        for each in members:
            assert each.hear() == "ok"
        end(members)

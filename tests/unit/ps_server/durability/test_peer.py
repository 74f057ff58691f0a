"""The log of a shard at a peer: over real calls, with peers and owners that go at any moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.unit.ps_server.durability.replicas import (
    TOKEN,
    Job,
    Owner,
    beat,
    push,
    pushing,
    recovered,
    settle,
    snapshot,
    until,
)
from tests.waiting import HANG_S
from torch_edl.config import TrainConfig
from torch_edl.errors import StaleIncarnationError, StateLostError, UsageError
from torch_edl.ps_server.durability import peer as peer_log
from torch_edl.ps_server.durability import transfer
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.records import (
    HEAD_BYTES,
    Kind,
    LogEntry,
    pack,
)
from torch_edl.ps_server.service import PserverService
from torch_edl.ps_server.shard import ModelShard
from torch_edl.wire import pserver_pb2
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.stub import DataStub


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def test_a_successor_finds_what_was_acknowledged(job: Job) -> None:
    log, peer = job.settled()
    push(log, b"a", b"", b"c" * 3_000_000)
    assert recovered(job.owner(), peer) == ({}, [b"a", b"", b"c" * 3_000_000])


def test_nothing_is_acknowledged_before_the_master_knows_that_there_is_a_copy(job: Job) -> None:
    """A server that dies before it acknowledged anything leaves nothing to look for."""
    peer = job.peer()
    log = job.first(peer)
    with log.place._condition:
        assert log.place._condition.wait_for(lambda: log.place._complete, HANG_S)
    thread = pushing(log, b"a")
    thread.join(0.2)
    assert thread.is_alive()
    beat(log, peer)
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_watermarks_are_told_when_their_pushes_are_durable(job: Job) -> None:
    """Nobody sends the records up to a watermark again."""
    log, peer = job.settled()
    shard = ModelShard(TrainConfig(), None, lambda: pytest.fail("half-way"), log=log)
    fence = pserver_pb2.Fence(job="job", incarnation=1)
    service = PserverService(shard, fence=fence, stem="", log=log)
    sgd = pserver_pb2.OptimizerConfig(
        kind="sgd", groups=[pserver_pb2.ParamGroup(hyper={"lr": 1.0})]
    )
    shard.initialize(pserver_pb2.PushDenseParametersRequest(optimizer=sgd))
    log.wait_durable()
    peer.gate.clear()
    records = pserver_pb2.RecordRange(task_id=5, first=0, last=64)
    shard.push(pserver_pb2.PushGradientsRequest(range=records))
    request = pserver_pb2.GetWatermarksRequest(fence=fence, task_ids=[5])
    told: list[int] = []
    thread = threading.Thread(
        target=lambda: told.extend(service.handlers()["GetWatermarks"](request, None).offsets)
    )
    thread.start()
    thread.join(0.2)
    assert not told
    peer.gate.set()
    thread.join(HANG_S)
    assert told == [64]
    service.close()


def test_pushes_wait_for_a_peer_and_memory_is_bounded(job: Job) -> None:
    log = job.first(None, most_kept=1000)
    assert "pushes wait, no peer listens" in log.place.problem
    thread = pushing(log, b"x" * 900)
    until(log, lambda: log.last >= 1)
    with pytest.raises(OSError, match="no room in memory, no peer listens"):
        log.append(LogEntry.of(Kind.GRADIENTS, b"y" * 200))
    peer = job.peer()
    settle(log, peer)
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert log.place.problem == ""
    push(log, b"y" * 200)
    assert recovered(job.owner(), peer)[1] == [b"x" * 900, b"y" * 200]


def test_one_call_takes_what_came_meanwhile(job: Job) -> None:
    log, peer = job.settled()
    peer.calls.clear()
    peer.gate.clear()
    threads = [pushing(log, bytes([n])) for n in range(20)]
    until(log, lambda: log.last >= 20)
    peer.gate.set()
    for thread in threads:
        thread.join(HANG_S)
    assert len(peer.calls) <= 3
    assert sorted(recovered(job.owner(), peer)[1]) == [bytes([n]) for n in range(20)]


def test_a_new_peer_gets_a_base_while_changes_go_on(job: Job) -> None:
    log, old = job.settled()
    push(log, b"1", b"2")
    old.die()
    thread = pushing(log, b"3")
    new = job.peer()
    settle(log, new)
    thread.join(HANG_S)
    assert not thread.is_alive(), "nobody has a copy, and the master knows"
    assert log.place.needs_base
    with log.place.new_base() as folder:
        sequence = log.rotate()
        (folder / "state").write_bytes(b"1 2 3" * 5_000_000)
        (folder / "empty").write_bytes(b"")
        push(log, b"4")  # acknowledged: the base is no copy without it
        log.commit_snapshot(folder, sequence)
    assert log.place.problem == ""
    assert log.bytes == HEAD_BYTES + 1
    files, records = recovered(job.owner(), new)
    assert files == {"state": b"1 2 3" * 5_000_000, "empty": b""}
    assert records == [b"4"]


def test_a_server_whose_copy_is_gone_goes_on_alone_once_the_master_knows(job: Job) -> None:
    log, old = job.settled()
    push(log, b"1")
    old.die()
    thread = pushing(log, b"2")
    until(log, lambda: "does not keep it" in log.place.problem)
    log.place.heard(None, 0)
    assert log.place.note() == (2, False)
    thread.join(0.2)
    assert thread.is_alive(), "the master does not know yet"
    log.place.heard(None, 1)  # the answer to an earlier heartbeat
    thread.join(0.2)
    assert thread.is_alive()
    beat(log, None)
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert log.place.problem == ""
    new = job.peer()
    settle(log, new)
    snapshot(log, {"state": b"1 2"})
    assert log.place.note() == (3, True), "from now on nothing is acknowledged without a copy"
    push(log, b"3")
    assert recovered(job.owner(), new) == ({"state": b"1 2"}, [b"3"])


def test_a_server_whose_peer_is_out_of_reach_waits(job: Job) -> None:
    """The copy is there, and may be needed: nothing must be acknowledged that it lacks."""
    log, peer = job.settled()
    push(log, b"1")
    peer.die()
    thread = pushing_until_closed(log, b"2")
    until(log, lambda: "does not keep it" in log.place.problem)
    beat(log, peer)
    assert log.place.note() == (0, True)
    thread.join(0.2)
    assert thread.is_alive()
    log.close()
    thread.join(HANG_S)


def test_a_server_that_is_alone_keeps_no_more_than_fits(job: Job) -> None:
    log = alone(job, most_kept=1000)
    push(log, *(b"x" * 400 for _ in range(10)))
    peer = job.peer()
    settle(log, peer)
    assert log.place.needs_base
    with log.place.new_base() as folder:
        sequence = log.rotate()
        (folder / "state").write_bytes(b"all")
        push(log, b"y" * 50)
        thread = pushing(log, b"z" * 400)
        thread.join(0.2)
        assert thread.is_alive(), "the base needs the records behind it"
        log.commit_snapshot(folder, sequence)
    thread.join(HANG_S)
    push(log, b"w" * 400)
    files, records = recovered(job.owner(), peer)
    assert (files, [r[:1] for r in records]) == ({"state": b"all"}, [b"y", b"z", b"w"])


def test_a_server_that_is_alone_goes_on_when_a_base_fails(job: Job) -> None:
    log = alone(job, most_kept=1000)
    settle(log, job.peer())
    with log.place.new_base():  # nothing is committed
        push(log, b"x" * 400)
        thread = pushing(log, b"y" * 400)
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(HANG_S)
    assert not thread.is_alive()
    push(log, b"z" * 900)


def alone(job: Job, **more: Any) -> Owner:
    """A server whose copy was lost, as the master knows."""
    log, peer = job.settled(**more)
    push(log, b"0")
    peer.die()
    beat(log, None)
    beat(log, None)
    return log


def test_a_peer_that_has_half_a_base_has_nothing(job: Job) -> None:
    old, new = job.peer(), job.peer()
    log = job.first(old)
    settle(log, old)
    push(log, b"1")
    settle(log, new)
    piece = Framed(pb.PutBaseRequest(sequence=1, file="state"), [memoryview(b"12")])
    log.place._peer.call(log.place._peer.stub, piece)
    successor = job.owner()
    beat(successor, new)
    with pytest.raises(StateLostError, match="no complete copy"):
        successor.take_over()


def test_a_base_replaces_the_log_that_it_covers(job: Job, tmp_path: Path) -> None:
    log, peer = job.settled()
    for n in range(5):
        push(log, bytes([n]) * 1000)
        snapshot(log, {"state": bytes([n])})
        assert log.bytes == 0
    push(log, b"after")
    assert recovered(job.owner(), peer) == ({"state": b"\4"}, [b"after"])
    stored = sum(p.stat().st_size for p in tmp_path.glob("peer-*/**/*") if p.is_file())
    assert stored < 1000


def test_a_successor_continues_the_log_and_has_a_successor(job: Job) -> None:
    log, peer = job.settled()
    push(log, b"1")
    snapshot(log, {"state": b"1"})
    push(log, b"2")
    second = job.owner()
    assert recovered(second, peer) == ({"state": b"1"}, [b"2"])
    settle(second, peer)
    assert not second.place.needs_base
    push(second, b"3")
    third = job.owner()
    assert recovered(third, peer) == ({"state": b"1"}, [b"2", b"3"])
    # The peer dies now: what the third server fetched is no longer in its memory.
    new = job.peer()
    settle(third, new)
    assert third.place.needs_base
    snapshot(third, {"state": b"1 2 3"})
    push(third, b"4")
    assert recovered(job.owner(), new) == ({"state": b"1 2 3"}, [b"4"])


def test_a_server_that_was_only_paused_acknowledges_nothing_more(job: Job) -> None:
    paused, peer = job.settled()
    push(paused, b"1")
    successor = job.owner()
    assert recovered(successor, peer) == ({}, [b"1"])
    thread = pushing_until_closed(paused, b"never")
    until(paused, lambda: "does not keep it" in paused.place.problem)
    with pytest.raises(OSError, match="replica of shard 0"):
        snapshot(paused, {"state": b"of the past"})
    beat(paused, peer)  # even if the master did not know better
    settle(successor, peer)
    push(successor, b"2")
    assert thread.is_alive()
    paused.place.close("known=false")
    thread.join(HANG_S)
    assert thread.refused == "known=false"
    assert recovered(job.owner(), peer) == ({}, [b"1", b"2"])


class pushing_until_closed(threading.Thread):
    def __init__(self, log: Owner, payload: bytes) -> None:
        super().__init__()
        self._args, self.refused = (log, payload), ""
        self.start()

    def run(self) -> None:
        try:
            push(*self._args)
        except StaleIncarnationError as error:
            self.refused = str(error)


def test_owner_and_peer_that_are_gone_mean_that_the_state_is_lost(job: Job) -> None:
    log, _ = job.settled()
    push(log, b"1")
    none, fresh = job.owner(), job.owner()
    beat(none, None)
    with pytest.raises(StateLostError, match="the server that kept it is gone too"):
        none.take_over()
    new = job.peer()
    beat(fresh, new)
    with pytest.raises(StateLostError, match="has no complete copy"):
        fresh.take_over()


def test_a_peer_that_dies_while_it_gives_means_that_the_state_is_lost(job: Job) -> None:
    log, old = job.settled()
    push(log, b"1")
    successor = job.owner()
    beat(successor, old)
    successor.take_over()
    beat(successor, job.peer())
    with pytest.raises(StateLostError, match="is gone too"):
        list(successor.records())


def test_a_call_that_fails_is_repeated_after_the_next_heartbeat(job: Job) -> None:
    """And the master may name a peer that is gone already."""
    gone = job.peer()
    gone.die()
    log = job.first(gone)
    thread = pushing(log, b"1")
    until(log, lambda: "does not keep it" in log.place.problem)
    peer = job.peer()
    settle(log, peer)
    thread.join(HANG_S)
    assert not thread.is_alive()
    successor = job.owner()
    beat(successor, gone)
    helper = threading.Thread(target=beat, args=(successor, peer))
    helper.start()
    successor.take_over()
    helper.join()
    assert [r.payload for r in successor.records()] == [b"1"]


def test_a_first_server_drops_the_copy_of_one_that_acknowledged_nothing(job: Job) -> None:
    log, peer = job.settled()
    push(log, b"of the first")
    second = job.first(peer)
    settle(second, peer)
    push(second, b"of the second")
    assert recovered(job.owner(), peer) == ({}, [b"of the second"])


def test_what_does_not_belong_here_is_refused(job: Job, tmp_path: Path) -> None:
    log, peer = job.settled()
    push(log, b"1")
    stub = DataStub(peer.data.endpoint, TOKEN)
    fence = pserver_pb2.Fence(job="job", incarnation=peer.server.incarnation)
    owner = log.place._peer._owner

    def refused(request: Any, code: str, match: str, *frames: bytes) -> None:
        request.fence.CopyFrom(fence)
        with pytest.raises(grpc.RpcError) as caught:
            stub.call(Framed(request, list(map(memoryview, frames))), timeout_s=HANG_S)
        assert caught.value.code().name == code, caught.value.details()
        assert match in caught.value.details()

    invalid = "INVALID_ARGUMENT"
    other = pb.ReplicaOwner(shard=1, shards=2, model=1, incarnation=9)
    refused(pb.ReplicateRequest(owner=other), invalid, "this server keeps that of shard 0 of 2")
    gap = pack(3, LogEntry.of(Kind.GRADIENTS, b"3"))
    refused(pb.ReplicateRequest(owner=owner), invalid, "ends with record 1", gap)
    refused(pb.ReplicateRequest(owner=owner), invalid, "begins no record", b"junk")
    for name in ("../evil", "/etc/evil", ".hidden"):
        refused(pb.PutBaseRequest(owner=owner, sequence=1, file=name), invalid, "not of a base")
    wrong = pb.PutBaseRequest(owner=owner, sequence=1, files={"missing": 5})
    refused(wrong, invalid, "were sent, {} came")
    fetch = pb.FetchReplicaRequest(owner=owner, file="../../secret")
    refused(fetch, invalid, "not of the base")
    early = pb.FetchReplicaRequest(owner=pb.ReplicaOwner(shard=0, shards=2, incarnation=99))
    refused(early, "FAILED_PRECONDITION", "not taken over by this server")
    # A record that comes twice is one record.
    again = Framed(pb.ReplicateRequest(fence=fence, owner=owner))
    again.frames.append(memoryview(pack(1, LogEntry.of(Kind.GRADIENTS, b"1"))))
    assert stub.call(again, timeout_s=HANG_S).message.last == 1
    stub.close()
    push(log, b"2")
    assert recovered(job.owner(), peer) == ({}, [b"1", b"2"])


def test_a_successor_takes_a_whole_base_while_another_is_put_into_force(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, peer = job.settled()
    push(log, b"a")
    snapshot(log, {"state": b"old"})
    push(log, b"b")
    settle(log, peer)
    replaces, go_on = threading.Event(), threading.Event()
    real = ChangeLog.commit_snapshot

    def slow(kept: ChangeLog, *args: Any) -> None:
        if kept is not log:
            replaces.set()
            assert go_on.wait(HANG_S)
        real(kept, *args)

    monkeypatch.setattr(ChangeLog, "commit_snapshot", slow)
    successor, found = job.owner(), []
    owner = threading.Thread(target=snapshot, args=(log, {"state": b"new"}))
    owner.start()
    assert replaces.wait(HANG_S)
    taker = threading.Thread(target=lambda: found.append(recovered(successor, peer)))
    taker.start()
    taker.join(0.2)  # it asks for the replica meanwhile
    go_on.set()
    taker.join(HANG_S)
    owner.join(HANG_S)
    assert found == [({"state": b"new"}, [])]


def test_a_change_is_refused_that_a_successor_could_not_fetch(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor fetches a record in one frame with up to 4 MiB of the records before."""
    limit = transfer.PIECE_BYTES + 100_000
    monkeypatch.setattr(peer_log, "MAX_FRAME_BYTES", limit)
    log, _ = job.settled()
    with pytest.raises(UsageError, match="use more --ps"):
        push(log, b"a" * 100_001)
    push(log, b"a" * 99_900)

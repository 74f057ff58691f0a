"""The move of a model to other servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from master.runtime import loop
from master.runtime.persistence import StateWriter, left_behind
from master.runtime.service import Service
from master.runtime.store import SqliteStore, acquire
from master.state.actions import (
    CheckpointFailed,
    CheckpointSaved,
    Prune,
    Remove,
    Saved,
    SaveServers,
)
from master.state.calls import worker_calls
from tests.unit.master.script_jobs import UNBOUND
from tests.unit.master.world import World, every_record, running
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def world(**options: object) -> World:
    return running(workers=2, **options)


def cut(w: World) -> SaveServers:
    """Return the cut that is asked for now."""
    w.tick()
    effect = w.effect(SaveServers)
    assert effect.move
    return effect


def take(w: World, effect: SaveServers) -> list[Prune]:
    """Write the cut. Returns what is to be removed then."""
    saved = w.made(effect.progress)
    saved = Saved(effect.root / saved.path.name, saved.manifest)
    w.apply(CheckpointSaved(saved, effect.incarnation))
    prunes = [action for action in w.tick() if isinstance(action, Prune)]
    w.up()
    return prunes


def failed(w: World, effect: SaveServers, **how: bool) -> None:
    w.apply(CheckpointFailed("disk full", effect.incarnation, **how))


def test_the_tasks_continue_on_other_servers() -> None:
    w = world()
    w.work(tasks=3)
    old = w.server_addresses()
    w.scale(servers=3)
    lease = w.task()
    effect = cut(w)
    assert w.server_addresses() == old, "until the cut is complete"
    assert not w.tick(5), "once"
    (prune,) = take(w, effect)
    assert (prune.keep, w.job.checkpoints.shown) == (1, ""), "it is no checkpoint of the user"
    assert len(set(w.server_addresses()) - set(old)) == 3
    assert w.fleet.model.restored_from.startswith(str(effect.root))
    assert not w.complete(0, lease, steps=2), "the lease is void"
    assert w.task().retried, "from the mark of the new servers"
    w.job.tasks.void()
    w.work()
    assert w.counted == every_record()
    assert w.job.lifecycle.rollbacks == 0


def test_the_last_number_counts() -> None:
    w = world()
    w.scale(servers=3)
    effect = cut(w)
    w.scale(servers=5)
    take(w, effect)
    assert len(w.server_addresses()) == 5
    w.scale(servers=1)
    w.scale(servers=5)
    w.tick()
    assert not w.actions, "nothing to do"
    w.scale(3, servers=5)
    w.tick()
    assert (w.actions, w.fleet.workers_wanted) == ([], 3)


def test_before_servers_have_started() -> None:
    auto = World(strategy="auto")
    auto.scale(servers=3)
    auto.call(worker_calls.register, pb.RegisterRequest(worker_id=0))
    auto.report_model(0, UNBOUND)
    auto.all_up()
    assert len(auto.server_addresses()) == 3
    assert not auto.actions


def test_before_workers_have_told_the_servers_what_they_hold() -> None:
    w = world()
    w.scale(servers=3)
    events = len(w.texts())
    failed(w, cut(w), early=True)
    assert len(w.texts()) == events
    w.tick(0.4)
    assert not w.actions
    w.tick(0.2)
    take(w, cut(w))
    assert len(w.server_addresses()) == 3


def test_a_cut_that_fails_is_followed_by_another_one() -> None:
    """Even if the user changes their mind: a server may be sealed."""
    w = world()
    w.scale(servers=3)
    failed(w, cut(w))
    assert w.said("disk full", "warning")
    w.scale(servers=2)
    w.tick(5)
    old = w.server_addresses()
    take(w, cut(w))
    assert len(w.server_addresses()) == 2
    assert not set(w.server_addresses()) & set(old)
    w.tick(10)
    assert not w.actions


def test_a_server_dies_before_the_cut_is_complete() -> None:
    """The cut is void: the model is that of the new servers."""
    w = world()
    w.work(tasks=3)
    w.scale(servers=3)
    effect = cut(w)
    w.exit("ps", 0, signal=9)
    w.up()
    assert len(w.server_addresses()) == 3, "new ones come in the new number"
    assert w.fleet.model.restored_from == ""
    take(w, effect)
    assert w.fleet.model.restored_from == ""
    w.tick(10)
    assert not w.actions
    w.work()
    assert w.job.lifecycle.rollbacks == 1


def test_a_cut_of_a_server_that_was_replaced_is_void() -> None:
    """Its successor may have acknowledged pushes that the cut lacks, and may have to read the
    checkpoint before."""
    w = world(dir="/ck")
    w.scale(servers=3)
    effect = cut(w)
    w.fleet.server_lost(next(iter(w.fleet.servers)))
    w.up()
    before = w.server_addresses()
    assert not take(w, effect), "no checkpoint is removed"
    assert w.job.checkpoints.newest is not None
    assert w.server_addresses() == before
    take(w, cut(w))
    assert len(w.server_addresses()) == 3


def test_attempts_are_numbered_over_all_masters() -> None:
    """Whatever clocks say: a server that an attempt has sealed heeds those with a higher number."""
    w = world()
    w.scale(servers=3)
    numbers = [(effect := cut(w)).move]
    for _ in range(2):
        failed(w, effect)
        w.tick(10)
        numbers.append((effect := w.effect(SaveServers)).move)
        w = w.restart()
        servers = w.fleet.servers
        assert (servers.shards, servers.wanted, servers.moving) == (2, 3, True)
        numbers.append((effect := cut(w)).move)
    assert numbers == sorted(set(numbers))


def test_a_later_loss_goes_back_to_the_cut() -> None:
    w = world()
    w.work(tasks=3)
    w.scale(servers=1)
    effect = cut(w)
    take(w, effect)
    w.work(tasks=2)
    w.exit("ps", max(p.id for p in w.fleet.alive("ps")), signal=9)
    assert w.fleet.model.restored_from.startswith(str(effect.root))
    assert not w.fleet.model.values_only
    w.all_up()
    w.work()
    assert w.job.tasks.trained


def test_a_cut_is_a_checkpoint() -> None:
    w = world(dir="/ck", every=4)
    w.work(tasks=1)
    w.scale(servers=1)
    effect = cut(w)
    assert effect.root == Path("/ck")
    prunes = take(w, effect)
    newest = w.job.checkpoints.newest
    assert prunes == [Prune(newest.path, w.config.checkpoint.keep)]
    assert w.said(f"checkpoint {newest.path}")
    assert w.job.checkpoints.shown == w.fleet.model.restored_from == str(newest.path)


def test_only_a_master_that_its_store_knows_seals_servers_and_removes_checkpoints() -> None:
    """One that is cut off from its store would remove what its successor goes back to. A checkpoint
    that runs comes before a move."""
    w = world(dir="/ck", every=4)
    w.work(tasks=2)
    w.scale(servers=1)
    w.tick()
    effect = w.effect(SaveServers)
    assert not effect.move
    assert not loop.waits(effect), "a checkpoint harms nobody"
    saved = w.made(effect.progress)
    w.apply(CheckpointSaved(saved, effect.incarnation))
    (prune,) = w.job.checkpoints.take_actions()
    assert prune == Prune(saved.path, w.config.checkpoint.keep)
    assert loop.waits(prune)
    assert loop.waits(cut(w))


def test_a_job_that_stops_does_not_move() -> None:
    w = world(dir="/ck")
    w.work(tasks=3)
    w.scale(servers=1)
    effect = cut(w)
    w.job.stop("enough", w.now)
    old = w.server_addresses()
    take(w, effect)
    assert w.server_addresses() == old
    for worker in sorted(w.alive):
        w.exit("worker", worker, code=0)
    w.tick()
    assert w.outcome.state == "stopped"
    assert not w.said("no last checkpoint")


@pytest.mark.parametrize("trained", [False, True])
def test_a_stop_after_a_move_keeps_what_is_not_in_the_cut(trained: bool) -> None:
    w = world(dir="/ck")
    w.work(tasks=3)
    w.scale(servers=1)
    take(w, cut(w))
    if trained:
        w.all_up()
        w.work(tasks=1)
    w.job.stop("enough", w.now)
    for worker in sorted(w.alive):
        w.exit("worker", worker, code=0)
    w.tick()
    if trained:
        assert not w.effect(SaveServers).move
    assert (w.outcome is None) == trained


def test_the_journals_of_the_old_servers_are_removed_when_these_have_ended() -> None:
    w = world()
    w.fleet.server_command = replace(w.fleet.server_command, journals="/j")
    w.scale(servers=3)
    old = next(iter(w.fleet.servers))
    effect = cut(w)
    w.saved(effect.progress, effect.incarnation)
    w.tick()
    assert not any(isinstance(action, Remove) for action in w.actions), "no server listens"
    w.up()
    assert w.effect(Remove).directory == Path("/j/model-1")
    assert old.state == "exited"
    w.tick(5)
    assert not w.actions, "once"


def test_nobody_hears_of_new_servers_before_a_restarted_master_would_know(tmp_path: Path) -> None:
    w = world()
    w.scale(servers=3)
    effect = cut(w)
    store = SqliteStore(tmp_path / "state.sqlite")
    writer = StateWriter(acquire(store, "j"), secret="s", superseded=pytest.fail)
    service = Service(
        w.job, clock=lambda: w.now, log_path=lambda role, id: "", cores=1, writer=writer
    )
    heartbeat = service.handlers()["ServerHeartbeat"]
    old = next(iter(w.fleet.servers))
    request = pb.ServerHeartbeatRequest(shard=old.shard, incarnation=old.incarnation)
    assert heartbeat(request, None).known
    assert left_behind(store, "s") is None, "nothing that others rely on"
    w.saved(effect.progress, effect.incarnation)
    store._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(OSError, match="readonly"):
        heartbeat(request, None)
    store._connection.execute("PRAGMA query_only = OFF")
    assert not heartbeat(request, None).known
    kept, entry = left_behind(store, "s"), store.get("state")
    assert kept is not None
    assert kept["fleet"]["model"]["incarnation"] == 2
    assert not heartbeat(request, None).known
    assert store.get("state") == entry, "once"
    writer.close()


@pytest.mark.parametrize(
    ("options", "number", "text"),
    [
        ({}, -1, "at least"),
        ({}, 1001, "1,000"),
        ({"strategy": "local"}, 2, "--strategy ps"),
        ({"kind": "predict", "output": "o.csv"}, 2, "train"),
        ({"cluster": True}, 2, "--checkpoint-dir on a --volume"),
    ],
)
def test_a_number_that_cannot_be(options: dict[str, str], number: int, text: str) -> None:
    w = World(**options)
    with pytest.raises(UsageError, match=f"--ps {number}: .*{text}"):
        w.scale(servers=number)


def test_neither_number_changes_if_one_cannot_be() -> None:
    w = world()
    with pytest.raises(UsageError):
        w.scale(3, servers=2000)
    with pytest.raises(UsageError):
        w.scale(2, servers=3, least=4)
    assert (w.fleet.workers_wanted, w.fleet.servers.wanted) == (2, 2)


@pytest.mark.parametrize(
    ("durability", "then"),
    [("checkpoint", "the model moves to other servers"), ("journal", "another server takes")],
)
def test_a_preempted_server_is_told_of_once(durability: str, then: str) -> None:
    w = world(durability={"mode": durability})
    first = next(iter(w.fleet.servers))
    for _ in range(2):
        stays = w.server_beat(first, leaving=True, notice="/f exists").stay
        assert stays == (durability == "checkpoint")
    assert w.said(f"ps-{first.id} is preempted (/f exists): {then}") == 1


def test_a_server_that_is_asked_to_leave_stays_until_the_model_has_moved() -> None:
    w = world()
    first = next(iter(w.fleet.servers))
    for _ in range(2):
        assert w.server_beat(first, leaving=True).stay
    assert w.said("was asked to leave") == 1
    take(w, cut(w))
    assert not w.server_beat(first, leaving=True).known
    assert (len(w.server_addresses()), w.job.lifecycle.rollbacks) == (2, 0)
    w.job.stop("enough", w.now, at_once=True)
    assert not w.server_beat(next(iter(w.fleet.servers)), leaving=True).stay

"""The move of a model to other servers, in simulated time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from master.runtime import loop
from master.runtime.service import Service
from master.state.actions import (
    CheckpointFailed,
    CheckpointSaved,
    Prune,
    Remove,
    Saved,
    SaveServers,
)
from master.state.calls.server_calls import ServerCalls
from master.state.job.job import Job
from master.state.job.restart import to_state
from master.state.job.server_move import ServerMove
from tests.unit.master.model_file_world import World, every_record
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def world(**options: object) -> World:
    w = World(workers=2, **options)
    w.all_up()
    return w


def scale(w: World, servers: int, workers: int = 0) -> str:
    request = pb.ScaleRequest(servers=servers, min_workers=min(1, workers), max_workers=workers)
    return w.user_calls.scale(request, w.now).text


def cut(w: World) -> SaveServers:
    """The cut that is asked for now."""
    w.tick()
    effect = w.settle(SaveServers)
    assert effect.move
    return effect


def take(w: World, effect: SaveServers) -> list[Prune]:
    """The cut is written. Returns what is to be removed then."""
    saved = w.made(effect.progress)
    saved = Saved(effect.root / saved.path.name, saved.manifest)
    w.job.apply(CheckpointSaved(saved, effect.incarnation), w.now)
    prunes = [action for action in w.tick() if isinstance(action, Prune)]
    w.up()
    return prunes


def servers(w: World) -> list[str]:
    return [server.address for server in w.job.fleet.servers.now()]


def test_the_tasks_continue_on_other_servers() -> None:
    w = world()
    w.work(tasks=3)
    old = servers(w)
    assert scale(w, 3) == "parameter servers wanted: 2 before, 3 from now on"
    lease = w.lease(0).leases[0]
    effect = cut(w)
    assert servers(w) == old, "until the cut is complete"
    assert not w.tick(5), "once"
    take(w, effect)
    assert len(set(servers(w)) - set(old)) == 3
    assert w.job.fleet.restored_from.startswith(str(effect.root))
    assert not w.complete(0, lease, steps=2), "the lease is void"
    assert w.lease(0).leases[0].retried, "from the mark of the new servers"
    w.job.tasks.void()
    w.work()
    assert w.counted == every_record()
    assert w.job.lifecycle.rollbacks == 0


def test_the_last_number_counts() -> None:
    w = world()
    scale(w, 3)
    effect = cut(w)
    scale(w, 5)
    take(w, effect)
    assert len(servers(w)) == 5
    scale(w, 1)
    scale(w, 5)
    w.tick()
    assert not w.actions, "nothing to do"
    scale(w, 5, workers=3)
    w.tick()
    assert (w.actions, w.job.fleet.workers_wanted) == ([], 3)


def test_before_servers_have_started() -> None:
    w = World(strategy="auto")
    scale(w, 3)
    w.up()
    w.report_model(0, embeddings=[pb.EmbeddingReport(name="e", dynamic=True, dim=2)])
    w.all_up()
    assert len(servers(w)) == 3
    assert not w.actions


def test_before_workers_have_told_the_servers_what_they_hold() -> None:
    w = world()
    scale(w, 3)
    effect = cut(w)
    events = len(w.texts())
    w.job.apply(CheckpointFailed("no model yet", effect.incarnation, early=True), w.now)
    assert len(w.texts()) == events
    w.tick(0.4)
    assert not w.actions
    w.tick(0.2)
    take(w, cut(w))
    assert len(servers(w)) == 3


def test_a_cut_that_fails_is_followed_by_another_one() -> None:
    """Even if the user changes their mind: a server may be sealed."""
    w = world()
    scale(w, 3)
    effect = cut(w)
    w.job.apply(CheckpointFailed("disk full", effect.incarnation), w.now)
    assert "the next attempt follows: disk full" in w.texts("warning")[-1]
    scale(w, 2)
    w.tick(5)
    old = servers(w)
    take(w, cut(w))
    assert len(servers(w)) == 2
    assert not set(servers(w)) & set(old)
    w.tick(10)
    assert not w.actions


def test_a_server_dies_before_the_cut_is_complete() -> None:
    """The cut is void: the model is that of the new servers."""
    w = world()
    w.work(tasks=3)
    scale(w, 3)
    effect = cut(w)
    w.exit("ps", 0, signal=9)
    w.up()
    assert len(servers(w)) == 3, "new ones come in the new number"
    assert w.job.fleet.restored_from == ""
    take(w, effect)
    assert w.job.fleet.restored_from == ""
    w.tick(10)
    assert not w.actions
    w.work()
    assert w.job.lifecycle.rollbacks == 1


def test_a_cut_of_a_server_that_was_replaced_is_void() -> None:
    """Its successor may have acknowledged pushes that the cut has not."""
    w = world()
    scale(w, 3)
    effect = cut(w)
    fleet = w.job.fleet
    fleet.server_lost(next(iter(fleet.servers)))
    w.up()
    before = servers(w)
    take(w, effect)
    assert servers(w) == before
    take(w, cut(w))
    assert len(servers(w)) == 3


def test_attempts_are_numbered_over_all_masters() -> None:
    """Whatever clocks say: a server that an attempt has sealed heeds those with a higher number."""
    w = world()
    scale(w, 3)
    numbers = [(effect := cut(w)).move]
    for _ in range(2):
        w.job.apply(CheckpointFailed("no answer", effect.incarnation), w.now)
        w.tick(10)
        numbers.append((effect := w.settle(SaveServers)).move)
        left = json.loads(json.dumps(to_state(w.job)))
        w = World(workers=2, left=left, now=w.now)
        numbers.append((effect := cut(w)).move)
    assert numbers == sorted(set(numbers))


def test_a_later_loss_goes_back_to_the_cut() -> None:
    w = world()
    w.work(tasks=3)
    scale(w, 1)
    effect = cut(w)
    take(w, effect)
    w.work(tasks=2)
    w.exit("ps", max(p.id for p in w.job.fleet.alive("ps")), signal=9)
    assert w.job.fleet.restored_from.startswith(str(effect.root))
    assert not w.job.fleet.values_only
    w.all_up()
    w.work()
    assert w.job.tasks.trained


def test_a_cut_is_a_checkpoint() -> None:
    w = world(dir="/ck", every=4)
    w.work(tasks=1)
    scale(w, 1)
    effect = cut(w)
    assert effect.root == Path("/ck")
    prunes = take(w, effect)
    newest = w.job.checkpoints.newest
    assert newest is not None
    assert prunes == [Prune(newest.path, w.config.checkpoint.keep)]
    assert f"checkpoint {newest.path}" in w.texts()
    assert w.job.checkpoints.shown == w.job.fleet.restored_from == str(newest.path)


def test_a_job_without_checkpoints_keeps_the_newest_cut_alone() -> None:
    w = world()
    scale(w, 1)
    (prune,) = take(w, cut(w))
    assert prune.keep == 1
    assert w.job.checkpoints.shown == ""


def test_a_cut_that_is_void_is_a_checkpoint_and_removes_none() -> None:
    """Servers whose part is still in the one before may have to read that."""
    w = world(dir="/ck")
    scale(w, 3)
    effect = cut(w)
    w.job.fleet.server_lost(next(iter(w.job.fleet.servers)))
    w.up()
    assert not take(w, effect)
    assert w.job.checkpoints.newest is not None


def test_a_checkpoint_under_way_comes_first() -> None:
    w = world(dir="/ck", every=4)
    w.work(tasks=2)
    scale(w, 1)
    w.tick()
    assert not w.settle(SaveServers).move


def test_only_a_master_that_its_store_knows_seals_servers_and_removes_checkpoints() -> None:
    """One that is cut off from its store would remove what its successor goes back to."""
    w = world(dir="/ck", every=4)
    w.work(tasks=2)
    w.tick()
    effect = w.settle(SaveServers)
    assert not loop.waits(effect), "a checkpoint harms nobody"
    saved = w.made(effect.progress)
    w.job.apply(CheckpointSaved(saved, effect.incarnation), w.now)
    (prune,) = w.job.checkpoints.take_actions()
    assert prune == Prune(saved.path, w.config.checkpoint.keep)
    assert loop.waits(prune)
    scale(w, 1)
    assert loop.waits(cut(w))


def test_a_job_that_stops_does_not_move() -> None:
    w = world(dir="/ck")
    w.work(tasks=3)
    scale(w, 1)
    effect = cut(w)
    w.job.stop("enough", w.now)
    old = servers(w)
    take(w, effect)
    assert servers(w) == old
    for id in list(w.alive):
        w.exit("worker", id, code=0)
    w.tick()
    assert w.outcome.state == "stopped"
    assert not any("no last checkpoint" in text for text in w.texts())


@pytest.mark.parametrize("trained", [False, True])
def test_a_stop_after_a_move_keeps_what_is_not_in_the_cut(trained: bool) -> None:
    w = world(dir="/ck")
    w.work(tasks=3)
    scale(w, 1)
    take(w, cut(w))
    if trained:
        w.all_up()
        w.work(tasks=1)
    w.job.stop("enough", w.now)
    for id in list(w.alive):
        w.exit("worker", id, code=0)
    w.tick()
    if trained:
        assert not w.settle(SaveServers).move
    assert (w.outcome is None) == trained


def test_the_journals_of_the_old_servers_are_removed_when_these_have_ended() -> None:
    w = world()
    command = w.job.fleet.server_command
    w.job.fleet.server_command = replace(command, journals="/j")
    scale(w, 3)
    old = next(iter(w.job.fleet.servers))
    effect = cut(w)
    saved = w.made(effect.progress)
    w.job.apply(CheckpointSaved(saved, effect.incarnation), w.now)
    assert not w.job.server_move.tidy(), "no server listens"
    w.up()
    assert w.settle(Remove).directory == Path("/j/model-1")
    assert old.state == "exited"
    w.tick(5)
    assert not w.actions, "once"


def test_nobody_hears_of_new_servers_before_a_restarted_master_would_know() -> None:
    w = world()
    scale(w, 3)
    effect = cut(w)
    service = Service(w.job, clock=lambda: w.now, log_path=lambda role, id: "", cores=1)
    service.keeper = keeper = Keeper(w.job)
    heartbeat = service.handlers()["ServerHeartbeat"]
    old = next(iter(w.job.fleet.servers))
    request = pb.ServerHeartbeatRequest(shard=old.shard, incarnation=old.incarnation)
    assert heartbeat(request, None).known
    assert not keeper.kept, "nothing that others rely on"
    w.job.apply(CheckpointSaved(w.made(effect.progress), effect.incarnation), w.now)
    keeper.full = True
    with pytest.raises(OSError, match="full"):
        heartbeat(request, None)
    keeper.full = False
    assert not heartbeat(request, None).known
    assert not heartbeat(request, None).known
    assert keeper.kept == [2], "once"


class Keeper:
    """Of the incarnation of the model."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.kept: list[int] = []
        self.full = False

    def note(self) -> int:
        return self._job.fleet.incarnation

    def write(self, noted: int) -> None:
        if self.full:
            raise OSError("the disk is full")
        self.kept.append(noted)


def test_a_restarted_master_carries_the_move_through() -> None:
    w = world()
    scale(w, 3)
    cut(w)
    after = World().job.fleet.servers
    after.from_state(w.job.fleet.servers.to_state(), list(w.job.fleet.servers))
    assert (after.shards, after.wanted, after.moving, after.moves) == (2, 3, True, True)


@pytest.mark.parametrize(
    ("options", "number", "text"),
    [
        ({}, -1, "at least one server"),
        ({}, 1001, "1,000 parameter servers at most"),
        ({"strategy": "local"}, 2, "start the job with --strategy ps"),
        ({"kind": "predict", "output": "o.csv"}, 2, "does not train"),
        ({"asks": True}, 2, "no folder in common; .* --checkpoint-dir on a --volume"),
    ],
)
def test_a_number_that_cannot_be(options: dict[str, str], number: int, text: str) -> None:
    w = World(**options)
    with pytest.raises(UsageError, match=f"--ps {number}: .*{text}"):
        scale(w, number)


def test_neither_number_changes_if_one_cannot_be() -> None:
    w = world()
    with pytest.raises(UsageError):
        scale(w, 2000, workers=3)
    assert w.job.fleet.workers_wanted == 2
    with pytest.raises(UsageError):
        w.user_calls.scale(pb.ScaleRequest(servers=3, min_workers=4, max_workers=2), w.now)
    assert w.job.fleet.servers.wanted == 2
    assert isinstance(w.job.server_move, ServerMove)


def test_a_server_that_is_asked_to_leave_stays_until_the_model_has_moved() -> None:
    w = world()
    calls, first = ServerCalls(w.job), next(iter(w.job.fleet.servers))
    request = pb.ServerHeartbeatRequest(
        shard=first.shard, incarnation=first.incarnation, leaving=True
    )
    assert calls.heartbeat(request, w.now).stay
    assert calls.heartbeat(request, w.now).stay
    assert len([text for text in w.texts() if "was asked to leave" in text]) == 1
    take(w, cut(w))
    assert not calls.heartbeat(request, w.now).known
    assert (len(servers(w)), w.job.lifecycle.rollbacks) == (2, 0)
    w.job.stop("enough", w.now, at_once=True)
    second = next(iter(w.job.fleet.servers))
    request.incarnation = second.incarnation
    assert not calls.heartbeat(request, w.now).stay

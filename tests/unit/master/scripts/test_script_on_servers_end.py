"""How the job of a training script on parameter servers ends, and continues."""

from __future__ import annotations

import json

from master.state.actions import Flush, SaveServers
from master.state.job.restart import to_state
from tests.unit.master.scripts.script_on_servers_world import (
    DRAIN,
    FINISHED,
    SMALL,
    UNBOUND,
    World,
    begun,
)
from torch_edl.processes.spec import ProcessExit

# ---- the end ----


def test_scripts_hear_of_the_end_once_the_model_is_saved() -> None:
    w = begun(checkpoints=True)
    w.train_all(0)
    w.tick()
    assert w.lease(0) is None, "the checkpoint is not written"
    saved = w.save()
    w.tick()
    assert w.lease(0).next == FINISHED
    assert w.outcome is None
    w.agent(done=True)
    assert w.outcome.state == "finished"
    w.tick()
    assert {(s.role, s.grace_s > 0) for s in w.stopped} == {("ps", True)}
    assert not w.job.lifecycle.over, "the servers still run"
    for process in w.job.fleet.alive("ps"):
        w.job.exited(ProcessExit(role="ps", id=process.id, code=0), w.now, log="l")
    w.agent(done=True)
    w.tick()
    assert w.job.lifecycle.over
    assert w.status().checkpoint == str(saved.path)


def test_a_worker_that_comes_after_the_end_hears_of_it() -> None:
    w = begun()
    w.train_all(0)
    w.tick()
    late = w.register(5, local_rank=1)
    assert w.report(late, UNBOUND)
    assert w.tell(late)
    assert w.lease(late, life=0).next == FINISHED


def test_a_script_that_leaves_its_loop_early_ends_the_job_with_what_it_has() -> None:
    w = begun(checkpoints=True)
    w.done(0, w.task(0))
    w.tick()
    w.agent(done=True)
    assert w.outcome is None, "the last checkpoint is not written"
    w.tick()
    assert w.save().manifest.watermarks.retired_before == 1
    w.tick()
    assert w.outcome.state == "finished"
    assert "the script left its loop with 3 tasks to do" in w.texts()


def test_a_script_that_never_begins_its_loader_ends_the_job() -> None:
    w = World(strategy="ps")
    w.agent()
    w.register(1)
    w.agent(done=True)
    assert w.outcome.state == "finished"


def test_a_server_lost_after_the_training_fails_a_job_without_checkpoints() -> None:
    w = begun()
    w.train_all(0)
    w.tick()
    assert w.lease(0).next == FINISHED
    w.kill_server()
    assert w.outcome.state == "failed"
    assert "--checkpoint-dir" in w.outcome.error


def test_a_server_lost_after_the_training_comes_back_with_the_last_checkpoint() -> None:
    w = begun(checkpoints=True)
    w.train_all(0)
    w.tick()
    saved = w.save()
    w.tick()
    w.kill_server()
    w.servers_up()
    assert w.started[-1].spec.args[-1] == str(saved.path)
    assert w.lease(0).next == FINISHED
    assert not [e for e in w.effects if isinstance(e, SaveServers | Flush)]
    w.agent(done=True)
    assert w.outcome.state == "finished"


def test_a_failed_job_lets_no_script_go_on_as_if_it_were_finished() -> None:
    w = begun()
    w.job.lifecycle.fail("disk on fire", w.now)
    assert w.lease(0).next == DRAIN


# ---- going on ----


def test_going_on_from_a_checkpoint_needs_the_same_data() -> None:
    first = begun(checkpoints=True)
    first.done(0, first.task(0))
    first.agent(done=True)
    first.tick()
    saved = first.save()
    second = begun(checkpoints=True, resumed=saved)
    assert second.task(0).task_id == 1
    assert second.started[0].spec.args[-1] == str(saved.path)
    third = World(strategy="ps", checkpoints=True, resumed=saved)
    third.servers_up()
    worker = third.register(1)
    third.report(worker, UNBOUND)
    third.tell(worker, shuffle=True)
    assert third.outcome.usage_error
    assert "made with shuffle=False, now it is shuffle=True" in third.outcome.error
    other = World(strategy="ps", checkpoints=True, resumed=saved)
    other.servers_up()
    other.report(other.register(1), UNBOUND)
    other.tell(0, files="another")
    assert "made with no data files, now it is data files another" in other.outcome.error


def test_the_servers_and_the_tasks_outlive_a_master_that_is_killed() -> None:
    w = begun()
    lease = w.task(0)
    again = World(strategy="ps", left=json.loads(json.dumps(to_state(w.job))))
    assert again.outcome is None
    assert not again.started
    assert again.job.fleet.cluster() == w.job.fleet.cluster()
    again.done(0, lease)
    assert again.job.done() == (50, 5)


def test_a_master_that_was_killed_before_the_strategy_was_known_decides_it() -> None:
    w = World()
    w.register(1)
    again = World(left=json.loads(json.dumps(to_state(w.job))))
    answer = again.report(0, SMALL)
    assert answer.strategy == "allreduce"

"""The workers of a training script: registration, rings, and those of torchrun."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from master.state.actions import Saved
from master.state.calls import script_calls
from master.state.lifecycle import RECONNECT_WITHIN_S, RETURN_WITHIN_S
from tests.unit.master.script_jobs import on_nodes, ring_of_two, script, torchrun
from tests.unit.master.world import TIMEOUT_S, World
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.errors import UsageError
from torch_edl.processes.launcher import ProcessRuns
from torch_edl.processes.oom_kills import OOM_KILLED
from torch_edl.wire import master_pb2 as pb


def resumed() -> World:
    manifest = Manifest(job="j", strategy="allreduce", steps=5, shards=1)
    return script(dir="/c", resumed=Saved(Path("/c/step-5"), manifest))


# ---- workers ----


def test_workers_get_numbers_and_a_ring() -> None:
    w = script()
    assert w.job.state == "starting"
    assert [w.register(11), w.register(12, local_rank=1)] == [0, 1]
    assert w.register(11) == 0, "the same process again"
    assert w.join(1) is None
    ring = w.join(0).ring
    assert (ring.number, list(ring.workers)) == (1, [0, 1])
    assert (ring.fresh, ring.store, ring.restored_from) == (True, "s0", "")
    assert w.job.changed, "others may be waiting for this ring"
    assert w.join(1).ring.number == 1
    w.tick()
    assert w.job.state == "running"
    status = w.status()
    assert status.strategy == "allreduce"
    told = [(p.role, p.pid, p.state) for p in status.processes[1:]]
    assert told == [("worker", 11, "running"), ("worker", 12, "running")]
    assert w.started == []


def test_the_log_of_a_worker_is_where_its_node_says_or_nowhere() -> None:
    w = on_nodes()
    w.apply(ProcessRuns(role="worker", id=1, pid=12, node="h", log="/tmp/a/0.log"))
    logs = [p.log for p in w.status().processes[1:]]
    assert logs == ["/logs/worker-0.log", "/tmp/a/0.log"]
    assert [p.log for p in torchrun().status().processes[1:]] == ["", ""]


def test_a_worker_in_the_slot_of_another_replaces_it() -> None:
    w = torchrun()
    assert w.register(13, local_rank=1) == 2
    assert w.beat(0).broken_ring == 1
    assert not w.beat(1).known
    assert w.join(1, ring=1, step=4).leave
    assert w.join(2) is None
    ring = w.join(0, ring=1, step=4).ring
    assert list(ring.workers) == [0, 2]
    assert (ring.source, ring.heal, ring.fresh) == (0, True, False)


def test_the_first_loss_that_is_not_finite_is_told_of() -> None:
    w = torchrun()
    for worker in (1, 0, 1):
        w.beat(worker, steps=7, logged={"acc": math.nan})
        w.beat(worker, steps=8, logged={"loss": math.inf})
    (text,) = w.texts("warning")
    assert text.startswith("worker-1: the loss is inf at step 8")


def test_a_worker_that_ends_breaks_the_ring_and_is_replaced() -> None:
    w = ring_of_two()
    w.exit("worker", 1, signal=9)
    assert w.beat(0).broken_ring == 1
    assert w.said("worker-1 ended with signal 9; the other workers continue") == 1
    assert w.begun() == ["worker-2"]
    assert w.started[-1].slot == 1
    assert w.enter(2).worker_id == 2
    assert w.join(2) is None
    assert w.join(0, ring=1, step=4).ring.workers == [0, 2]


def test_a_worker_that_was_killed_for_lack_of_memory_says_so() -> None:
    w = ring_of_two()
    w.exit("worker", 1, signal=9, why=OOM_KILLED, own_fault=True)
    assert w.said(f"worker-1 ended with signal 9: {OOM_KILLED}") == 1


def test_another_program_in_the_place_of_a_worker_takes_part_anew() -> None:
    """A shell script may run one program after the other."""
    w = ring_of_two()
    assert w.enter(1, pid=99).worker_id == 1
    assert w.said("worker-1 lost: another process took its place") == 1
    assert w.beat(0).broken_ring == 1
    assert w.join(1) is None
    assert list(w.join(0, ring=1, step=4).ring.workers) == [0, 1]
    assert w.enter(1, pid=99).worker_id == 1, "the answer was lost"
    assert w.beat(0).broken_ring == 0
    w.leave(1)
    with pytest.raises(UsageError, match="not a worker that this job waits for"):
        w.enter(1, pid=99)  # a call that arrives late


# ---- checkpoints ----


def test_only_members_of_the_newest_ring_write_checkpoints_and_a_new_life_begins_there() -> None:
    w = torchrun()
    assert w.report_checkpoint(0)
    assert w.status().checkpoint == "/c/1"
    w.register(13, local_rank=1)
    assert not w.beat(1).known
    assert not w.report_checkpoint(1, "/c/2")
    w.ring(0, 2, ring=1, step=9)
    assert not w.report_checkpoint(1, "/c/2")
    assert w.report_checkpoint(0, "/c/3"), "taken in the ring before, of the model of this one"
    assert w.report_checkpoint(0, "/c/3"), "the answer was lost"
    assert w.report_checkpoint(0)
    w.register(14)
    w.register(15, local_rank=1)
    ring = w.ring(3, 4)
    assert (ring.number, ring.fresh, ring.restored_from) == (3, True, "/c/1")
    assert w.fleet.model.incarnation == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_ring_begins_with_the_checkpoint_to_resume(restarted: bool) -> None:
    w = resumed()
    w.register(11)
    if restarted:
        w.ring(0)
        w = w.restart()
        w.register(12)
    ring = w.ring(int(restarted))
    assert (ring.fresh, ring.restored_from, ring.values_only) == (True, "/c/step-5", False)


def test_a_restarted_master_leaves_the_ring_alone() -> None:
    w = torchrun()
    w.report_checkpoint(0)
    w = w.restart(now=w.now + 1000)
    w.tick()
    assert w.job.state == "running"
    assert (w.beat(0).known, w.beat(0).broken_ring, w.beat(0).stale_ring) == (True, 0, 0)
    assert w.join(1).ring.number == 1, "an answer that was lost with the master"
    assert w.register(12, local_rank=1) == 1
    assert w.register(13, local_rank=1) == 2
    assert w.beat(0).broken_ring == 1
    assert w.status().checkpoint == "/c/1"
    w.tick(RETURN_WITHIN_S - 1)
    assert not w.said("declared lost")
    w.tick(1)
    assert w.said("worker-0 declared lost: no heartbeat for 10 s")


def test_a_worker_that_found_the_restarted_master_and_falls_silent_is_lost_as_ever() -> None:
    w = ring_of_two()
    w = w.restart(now=w.now + 1000)
    w.tick(1)
    w.beat(1)
    w.tick(TIMEOUT_S)
    assert w.said("worker-1 declared lost: no heartbeat for 10 s")
    assert w.said("declared lost") == 1, "worker-0 may still look for the master"
    w.tick(RETURN_WITHIN_S - TIMEOUT_S - 1)
    assert w.said("worker-0 declared lost")


@pytest.mark.parametrize(
    ("timeout_s", "within_s"), [(3.0, RECONNECT_WITHIN_S), (30.0, 30.0), (90.0, 90.0)]
)
def test_silence_after_a_restart_at_the_same_address_counts_as_ever(
    timeout_s: float, within_s: float
) -> None:
    """A worker that froze with the master holds its ring no longer than at any other time."""
    w = ring_of_two(heartbeat_timeout_s=timeout_s)
    w = w.restart(now=1000.0, same_address=True)
    w.tick(within_s - 1)
    w.beat(1)
    assert not w.said("declared lost")
    w.tick(1)
    assert w.said(f"worker-0 declared lost: no heartbeat for {timeout_s:g} s")
    assert w.said("declared lost") == 1, "worker-1 was heard"
    assert w.beat(1).broken_ring == 1


@pytest.mark.parametrize("moved", [False, True])
def test_each_restarted_master_gives_processes_the_time_of_its_own_address(moved: bool) -> None:
    """Nothing of the earlier master counts: neither its address nor what is left of its time."""
    w = ring_of_two()
    w = w.restart(now=1000.0, same_address=moved)
    w.tick(TIMEOUT_S - 1)
    w = w.restart(same_address=not moved)
    w.tick((RETURN_WITHIN_S if moved else TIMEOUT_S) - 1)
    assert not w.said("declared lost")
    w.tick(1)
    assert w.said("worker-0 declared lost")


# ---- torchrun's rounds ----


def test_rounds_answer_through_the_job() -> None:
    w = script()
    assert w.join_round("a", last_call_s=1.0) is None
    assert not w.job.changed
    answer = w.join_round("b")
    assert answer.place == pb.Place(round=1, rank=1, nodes=2, store="a:1")
    assert w.job.changed, "others may be waiting for this round"
    look = w.call(script_calls.get_round, pb.GetRoundRequest(node="a", round=1))
    assert (look.over, look.waiting) == (False, 0)
    w.leave_round("a")
    w = w.restart()
    assert w.join_round("a").place == pb.Place(round=1, rank=0, nodes=2, store="a:1")
    w.close_rounds()
    assert w.join_round("c").closed


def test_the_workers_of_a_node_that_is_in_no_round_any_more_are_dropped() -> None:
    w = script()
    for node in "ab":
        w.join_round(node)
    w.register(11, node="a")
    w.register(21, node="b")
    w.ring(0, 1)
    w.leave_round("b")
    w.join_round("a", "2")
    assert not w.beat(1).known
    assert w.beat(0).broken_ring == 1

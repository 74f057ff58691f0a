"""The workers of a training script: agents, slots, rings."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from master.state.actions import Saved
from master.state.calls import script_calls
from master.state.lifecycle import RECONNECT_WITHIN_S, RETURN_WITHIN_S
from tests.unit.master.script_jobs import died, ring_of_two, script, torchrun
from tests.unit.master.world import TIMEOUT_S, World
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import Experiment
from torch_edl.errors import UsageError
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


def test_the_log_of_a_worker_is_where_its_agent_says_or_nowhere() -> None:
    w = script()
    w.agent("n", pb.AgentWorker(local_rank=0, pid=11), pb.AgentWorker(pid=12, log="/tmp/a/0.log"))
    w.register(11)
    w.register(12, local_rank=1)
    assert [p.log for p in w.status().processes[1:]] == ["", "/tmp/a/0.log"]


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


def test_a_worker_that_ends_breaks_the_ring_once() -> None:
    w = ring_of_two()
    for _ in range(2):
        w.agent("n", died(12, log="/l"))
    assert w.beat(0).broken_ring == 1
    assert w.said("worker-1 lost: ended with signal 9") == 1
    found = w.status().processes[2]
    assert (found.exit, found.log) == ("ended with signal 9", "/l")


def test_a_worker_that_was_killed_for_lack_of_memory_says_so() -> None:
    w = ring_of_two()
    why = "the kernel killed the process, because memory was short"
    w.agent("n", died(12, why=why))
    assert w.said(f"worker-1 lost: ended with signal 9: {why}") == 1


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
    w = ring_of_two()
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
    w.agent()
    assert not w.said("declared lost")
    w.tick(1)
    assert w.said("worker-0 declared lost: no heartbeat for 10 s")


def ring_of_two_machines(**fields: float) -> World:
    w = script(workers=4, **fields)
    w.agent("a")
    w.agent("b")
    w.register(11, node="a")
    w.register(21, node="b")
    w.ring(0, 1)
    return w


def test_what_found_the_restarted_master_and_falls_silent_is_lost_as_ever() -> None:
    w = ring_of_two_machines()
    w = w.restart(now=w.now + 1000)
    w.tick(1)
    w.beat(1)
    w.agent("b")
    w.tick(TIMEOUT_S)
    assert w.said("worker-1 declared lost: no heartbeat for 10 s")
    assert w.said("agent b declared lost")
    assert w.said("declared lost") == 2, "worker-0 and agent a may still look for the master"
    w.tick(RETURN_WITHIN_S - TIMEOUT_S - 1)
    assert w.said("worker-0 declared lost")
    assert w.said("agent a declared lost")


@pytest.mark.parametrize(
    ("timeout_s", "within_s"), [(3.0, RECONNECT_WITHIN_S), (30.0, 30.0), (90.0, 90.0)]
)
def test_silence_after_a_restart_at_the_same_address_counts_as_ever(
    timeout_s: float, within_s: float
) -> None:
    """A worker that froze with the master holds its ring no longer than at any other time."""
    w = ring_of_two_machines(heartbeat_timeout_s=timeout_s)
    w = w.restart(now=1000.0, same_address=True)
    w.tick(within_s - 1)
    w.beat(1)
    w.agent("b")
    assert not w.said("declared lost")
    w.tick(1)
    assert w.said(f"worker-0 declared lost: no heartbeat for {timeout_s:g} s")
    assert w.said("agent a declared lost")
    assert w.said("declared lost") == 2, "worker-1 and agent b were heard"
    assert w.beat(1).broken_ring == 1


@pytest.mark.parametrize("moved", [False, True])
def test_each_restarted_master_gives_processes_the_time_of_its_own_address(moved: bool) -> None:
    """Nothing of the earlier master counts: neither its address nor what is left of its time."""
    w = ring_of_two_machines()
    w = w.restart(now=1000.0, same_address=moved)
    w.tick(TIMEOUT_S - 1)
    w = w.restart(same_address=not moved)
    w.tick((RETURN_WITHIN_S if moved else TIMEOUT_S) - 1)
    assert not w.said("declared lost")
    w.tick(1)
    assert w.said("worker-0 declared lost")


# ---- agents ----


def test_an_agent_that_is_silent_stays_while_its_workers_are_heard() -> None:
    w = ring_of_two()
    for _ in range(4):
        w.tick(TIMEOUT_S / 2)
        w.beat(0)
        w.beat(1)
    assert list(w.agent().kill) == []
    assert w.outcome is None
    assert not w.said("lost")


def test_a_silent_agent_is_declared_lost_with_its_workers() -> None:
    w = ring_of_two_machines()
    for _ in range(4):
        w.tick(TIMEOUT_S / 3)
        w.beat(0)
        w.agent("a")
    assert w.said("agent b declared lost")
    assert w.beat(0).broken_ring == 1
    assert not w.beat(1).known
    back = w.agent("b")
    assert (list(back.kill), back.node_rank, back.nodes) == ([21], 1, 2)
    assert list(w.agent("b", died(21)).kill) == []


def test_an_agent_that_starts_again_has_lost_its_workers() -> None:
    w = script()
    w.agent(id="1")
    w.register(11)
    w.agent(id="2")
    assert not w.beat(0).known


def test_scale_reaches_agents_and_nothing_else_does() -> None:
    w = script()
    assert w.agent("n", pb.AgentWorker(pid=10)).workers_wanted == 0
    w.scale(4)
    assert w.agent().workers_wanted == 4
    w.agent("m", pb.AgentWorker(pid=11))
    with pytest.raises(UsageError, match="2 agents"):
        w.scale(2)
    w.agent("m", done=True)
    w.scale(2)
    assert (w.agent().workers_wanted, w.agent().nodes) == (2, 1)


def test_an_agent_that_runs_something_else_is_refused_by_name() -> None:
    same = {"script": "/train.py", "folder": "/", "machine": "m", "rdzv_id": "none", "digest": "d"}
    w = script(experiment=Experiment(args=("0.005",), **same))
    mine, other = (pb.Experiment(args=[arg], **same) for arg in ("0.005", "0.5"))
    assert w.agent("n", experiment=mine).nodes == 1
    with pytest.raises(UsageError, match=r"job j .*0\.005.*0\.5"):
        w.agent("m", experiment=other)
    assert w.agent("n", experiment=mine).nodes == 1


def test_who_has_rank_0_says_where_a_group_of_the_script_meets() -> None:
    w = script()

    def told(node: str, port: int) -> tuple[int, str, int]:
        answer = w.agent(node, address=f"address-{node}", port=port)
        return answer.node_rank, answer.master_addr, answer.master_port

    assert told("n", 1) == (0, "address-n", 1)
    assert told("m", 2) == (1, "address-n", 1)
    w = w.restart()
    assert told("m", 2) == (1, "address-n", 1), "the master was started again"


def test_machines_get_the_least_number_that_is_free() -> None:
    w = script()
    worker = pb.AgentWorker(pid=11)
    assert [w.agent(node, worker).node_rank for node in ("a", "b")] == [0, 1]
    assert (w.agent("c").node_rank, w.agent("c").nodes) == (2, 3)
    w.agent("b", done=True)
    assert (w.agent("c").node_rank, w.agent("c").nodes) == (1, 2), "it has not begun"
    assert w.agent("c", worker).node_rank == 1
    assert w.restart().agent("c", worker).node_rank == 1
    w.agent("d", worker)
    w.tick(TIMEOUT_S / 2)
    w.agent("a", worker)
    w.agent("d", worker)
    w.tick(TIMEOUT_S / 2)
    assert w.agent("e").node_rank == 1, "c is lost"


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

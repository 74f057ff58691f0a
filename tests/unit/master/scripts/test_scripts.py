"""The workers of a training script: agents, places, rings."""

from __future__ import annotations

import math

import pytest

from master.state.lifecycle import RETURN_WITHIN_S
from tests.unit.master.scripts.script_world import TIMEOUT_S, World
from torch_edl.config import Experiment
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def test_workers_get_numbers_and_a_ring() -> None:
    w = World()
    assert w.job.state == "starting"
    assert [w.register(11, local_rank=0), w.register(12, local_rank=1)] == [0, 1]
    assert not w.join(1).HasField("ring")
    answer = w.join(0)
    assert (answer.ring.number, list(answer.ring.workers)) == (1, [0, 1])
    assert (answer.ring.fresh, answer.ring.store, answer.ring.restored_from) == (True, "s0", "")
    assert w.join(1).ring.number == 1
    w.tick()
    assert w.job.state == "running"
    status = w.status()
    assert status.strategy == "allreduce"
    assert [(p.role, p.pid, p.state) for p in status.processes[1:]] == [
        ("worker", 11, "running"),
        ("worker", 12, "running"),
    ]


def test_the_log_of_a_worker_is_where_its_agent_says_or_nowhere() -> None:
    w = World()
    w.agent("n", pb.AgentWorker(local_rank=0, pid=11), pb.AgentWorker(pid=12, log="/tmp/a/0.log"))
    w.register(11, local_rank=0)
    w.register(12, local_rank=1)
    assert [p.log for p in w.status().processes[1:]] == ["", "/tmp/a/0.log"]


def test_the_same_process_that_registers_again_keeps_its_number() -> None:
    w = World()
    assert w.register(11) == w.register(11) == 0


def test_a_worker_in_the_place_of_another_replaces_it() -> None:
    w = World()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    assert w.register(13, local_rank=1) == 2
    assert w.beat(0).broken_ring == 1
    assert not w.beat(1).known
    assert w.join(1, ring=1, step=4).leave
    assert not w.join(2).HasField("ring")
    answer = w.join(0, ring=1, step=4)
    assert list(answer.ring.workers) == [0, 2]
    assert (answer.ring.source, answer.ring.heal, answer.ring.fresh) == (0, True, False)


def test_the_first_loss_that_is_not_finite_is_told_of() -> None:
    w = World()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    for worker in (1, 0, 1):
        w.beat(worker, steps=7, logged={"acc": math.nan})
        w.beat(worker, steps=8, logged={"loss": math.inf})
    told = "worker-1: the loss is inf at step 8; lower the learning rate, or look at the data"
    assert [event.text for event in w.status().events if event.level == "warning"] == [told]


def test_a_worker_that_ends_breaks_the_ring_once() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    dead = pb.AgentWorker(local_rank=1, pid=12, exited=True, code=-9, log="/l")
    w.agent("n", dead)
    w.agent("n", dead)
    assert w.beat(0).broken_ring == 1
    assert w.texts().count("worker-1 lost: ended with signal 9") == 1
    assert w.status().processes[2].exit == "ended with signal 9"
    assert w.status().processes[2].log == "/l"


def test_a_silent_worker_is_declared_lost_and_its_agent_kills_it() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    for _ in range(3):
        w.tick(TIMEOUT_S / 2)
        w.beat(0)
        answer = w.agent()
    assert list(answer.kill) == [12]
    assert w.beat(0).broken_ring == 1
    gone = pb.AgentWorker(local_rank=1, pid=12, exited=True, code=-9)
    assert list(w.agent("n", gone).kill) == []


def test_an_agent_that_is_silent_stays_while_its_workers_are_heard() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.ring(0)
    for _ in range(4):
        w.tick(TIMEOUT_S / 2)
        w.beat(0)
    assert list(w.agent().kill) == []
    assert w.outcome is None
    assert "lost" not in w.texts()


def test_a_silent_agent_is_declared_lost_with_its_workers() -> None:
    w = World(most=4)
    w.agent("a")
    w.agent("b", pid=2)
    w.register(11, node="a")
    w.register(21, node="b")
    w.ring(0, 1)
    for _ in range(4):
        w.tick(TIMEOUT_S / 3)
        w.beat(0)
        w.agent("a")
    assert "agent b declared lost: no report of agent b for" in w.texts()
    assert w.beat(0).broken_ring == 1
    assert not w.beat(1).known
    back = w.agent("b", pid=2)
    assert list(back.kill) == [21]
    assert (back.node_rank, back.nodes) == (1, 2)


def test_without_any_agent_left_the_job_fails() -> None:
    w = World()
    w.agent()
    w.tick(TIMEOUT_S)
    w.tick(50)
    w.agent()
    assert w.outcome is None, "it paused"
    w.tick(TIMEOUT_S)
    w.tick(50)
    assert w.outcome is None
    w.tick(11)
    assert "nobody is left" in w.outcome.error
    w.tick()
    assert w.job.lifecycle.over


def test_an_agent_that_starts_again_has_lost_its_workers() -> None:
    w = World()
    w.agent(pid=1)
    w.register(11)
    w.agent(pid=2)
    assert not w.beat(0).known


def test_workers_and_nodes_of_torchrun_hear_that_the_job_is_stopped() -> None:
    w = World()
    w.register(11)
    w.ring(0)
    ask = pb.JoinRoundRequest(node="t", min_nodes=1, max_nodes=1, store="s")
    w.agent_calls.join_round(ask, w.now)
    w.job.stop("torch-edl stop", w.now)
    w.tick(1.0)
    assert not w.job.lifecycle.over
    assert w.beat(0).drain
    w.leave(0)
    w.tick(1.0)
    assert w.agent_calls.get_round(pb.GetRoundRequest(node="t", round=1), w.now).closed
    assert not w.job.lifecycle.over
    w.agent_calls.leave_round(pb.LeaveRoundRequest(node="t"), w.now)
    w.tick()
    assert w.job.lifecycle.over


def test_nobody_is_waited_for_who_does_not_hear_that_the_job_is_stopped() -> None:
    w = World()
    w.register(11)
    w.job.stop("torch-edl stop", w.now)
    w.tick(5.0)
    assert w.job.lifecycle.over


def test_scale_reaches_agents_and_nothing_else_does() -> None:
    w = World()
    assert w.agent("n", pb.AgentWorker(pid=10)).workers_wanted == 0
    w.user_calls.scale(pb.ScaleRequest(min_workers=1, max_workers=4), w.now)
    assert w.agent().workers_wanted == 4
    scale = pb.ScaleRequest(min_workers=1, max_workers=2)
    w.agent("m", pb.AgentWorker(pid=11))
    with pytest.raises(UsageError, match="2 agents start the workers"):
        w.user_calls.scale(scale, w.now)
    w.agent("m", done=True)
    w.user_calls.scale(scale, w.now)
    assert (w.agent().workers_wanted, w.agent().nodes) == (2, 1)


def test_it_is_finished_when_every_agent_is_done() -> None:
    w = World()
    w.agent("a", pb.AgentWorker(pid=11))
    w.agent("b", pb.AgentWorker(pid=12), pid=2)
    assert not w.agent("a", done=True).over
    assert w.agent("b", pid=2, done=True).over
    w.tick()
    assert w.outcome.exit_code == 0
    assert not w.job.lifecycle.over, "the other one has not heard"
    assert w.agent("a", done=True).over
    w.tick()
    assert (w.job.lifecycle.over, w.job.state) == (True, "finished")


def test_an_agent_that_runs_something_else_is_refused_by_name() -> None:
    def told(*args: str) -> pb.Experiment:
        return pb.Experiment(
            script="/train.py", args=args, folder="/", machine="m", rdzv_id="none", digest="d"
        )

    w = World(
        experiment=Experiment(
            script="/train.py",
            args=("0.005",),
            folder="/",
            machine="m",
            rdzv_id="none",
            digest="d",
        ),
    )
    assert w.agent("n", experiment=told("0.005")).nodes == 1
    with pytest.raises(
        UsageError, match=r"job j runs another .* arguments 0\.005 there, 0\.5 here"
    ):
        w.agent("m", experiment=told("0.5"))
    assert w.agent("n", experiment=told("0.005")).nodes == 1


def test_a_first_ring_that_does_not_come_about_fails_the_job() -> None:
    w = World(least=2)

    def wait(seconds: int, *workers: int) -> None:
        for _ in range(seconds):
            w.tick(1.0)
            w.agent("n")
            w.agent("m")
            for worker in workers:
                w.join(worker)

    wait(1000)  # before its loader a script may take what time it needs
    worker = w.register(11)
    wait(599, worker)
    assert w.outcome is None
    wait(3, worker)
    assert w.outcome is not None
    assert w.outcome.error.startswith(
        "nothing began within 600 s (--rdzv-conf join_timeout): 1 of at least 2 workers came"
    )


def test_who_has_rank_0_says_where_a_group_of_the_script_meets() -> None:
    w = World()

    def told(node: str, port: int, **fields) -> tuple[int, str, int]:
        answer = w.agent(node, address=f"address-{node}", port=port, **fields)
        return answer.node_rank, answer.master_addr, answer.master_port

    assert told("n", 1) == (0, "address-n", 1)
    assert told("m", 2) == (1, "address-n", 1)
    w = w.again()
    assert told("m", 2) == (1, "address-n", 1), "the master was started again"


def test_machines_get_the_least_number_that_is_free() -> None:
    w = World()
    worker = pb.AgentWorker(pid=11)
    assert [w.agent(node, worker).node_rank for node in ("a", "b")] == [0, 1]
    assert (w.agent("c").node_rank, w.agent("c").nodes) == (2, 3)
    w.agent("b", done=True)
    assert (w.agent("c").node_rank, w.agent("c").nodes) == (1, 2), "it has not begun"
    assert w.agent("c", worker).node_rank == 1
    assert w.again().agent("c", worker).node_rank == 1
    w.agent("d", worker)
    w.tick(TIMEOUT_S / 2)
    w.agent("a", worker)
    w.agent("d", worker)
    w.tick(TIMEOUT_S / 2)
    assert w.agent("e").node_rank == 1, "c is lost"


def test_records_of_all_passes_count_once() -> None:
    w = World()
    w.register(11)
    w.ring(0)
    w.beat(0, ring=1, position=10, pass_records=20, steps=2)
    w.tick(1)
    w.beat(0, ring=1, position=8, pass_records=20, steps=3)
    w.tick(1)
    status = w.status()
    assert (status.records_done, status.records_total, status.steps) == (10, 20, 3)
    w.beat(
        0, ring=1, position=4, pass_records=30, pass_index=1, steps=9, epoch=1, records_before=20
    )
    w.tick(1)
    assert w.job.done() == (24, 9)
    status = w.status()
    assert (status.records_done, status.records_total, status.epoch) == (24, 50, 1)
    assert status.records_begun == 20
    w.beat(0, ring=1, position=20, pass_records=20, steps=9)  # a late word of the pass before
    w.tick(1)
    assert w.status().records_done == 24
    w.leave(0, finished=True)
    w.beat(0, position=30, pass_records=30, pass_index=1, steps=13, records_before=20)
    assert (w.status().records_done, w.status().steps) == (50, 13), "its last words"


def test_only_members_of_the_newest_ring_write_checkpoints_and_a_new_life_begins_there() -> None:
    w = World()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    assert w.committed(0)
    assert w.status().checkpoint == "/c/1"
    w.register(13, local_rank=1)
    assert not w.beat(1).known
    assert not w.committed(1, to="/c/2")
    w.ring(0, 2, ring=1, step=9)
    assert not w.committed(1, to="/c/2")
    assert w.committed(0, to="/c/3"), "taken in the ring before, of the model of this one"
    assert w.committed(0, to="/c/3"), "the answer was lost"
    assert w.committed(0)
    w.register(14)
    w.register(15, local_rank=1)
    answer = w.ring(3, 4)
    assert (answer.ring.number, answer.ring.fresh, answer.ring.restored_from) == (3, True, "/c/1")
    assert w.job.fleet.incarnation == 2


def test_the_late_checkpoint_of_a_former_rank_0_is_not_gone_back_to() -> None:
    w = World()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    # It skipped a batch, and the ring broke before it had the state of the others.
    w.join(0, ring=1, step=-1)
    assert list(w.ring(1, ring=1, step=9).ring.workers) == [1, 0]
    assert w.committed(1, to="/c/2")
    assert not w.committed(0, to="/c/1")
    assert w.status().checkpoint == "/c/2"


def test_the_first_ring_begins_with_the_checkpoint_to_resume() -> None:
    w = World(resumed="/c/step-5")
    w.register(11)
    ring = w.ring(0).ring
    assert (ring.fresh, ring.restored_from, ring.values_only) == (True, "/c/step-5", False)


def test_a_restarted_master_knows_the_checkpoint_that_the_job_began_with() -> None:
    w = World(resumed="/c/step-5")
    w.register(11)
    w.ring(0)
    w = w.again()
    w.register(12)
    answer = w.ring(1).ring
    assert (answer.fresh, answer.restored_from, answer.values_only) == (True, "/c/step-5", False)


def test_a_restarted_master_leaves_the_ring_alone() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    w.committed(0)
    w.now += 1000
    w = w.again()
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
    assert "declared lost" not in w.texts()
    w.tick(1)
    assert "worker-0 declared lost: no heartbeat for 10 s" in w.texts()


def test_rounds_answer_through_the_job() -> None:
    w = World()
    ask = {"min_nodes": 1, "max_nodes": 2, "last_call_s": 1.0}
    first = pb.JoinRoundRequest(node="a", store="a:1", **ask)
    assert w.agent_calls.join_round(first, w.now) is None
    answer = w.agent_calls.join_round(pb.JoinRoundRequest(node="b", store="b:1", **ask), w.now)
    assert answer.place == pb.Place(round=1, rank=1, nodes=2, store="a:1")
    look = w.agent_calls.get_round(pb.GetRoundRequest(node="a", round=1), w.now)
    assert (look.over, look.waiting) == (False, 0)
    w.agent_calls.leave_round(pb.LeaveRoundRequest(node="a"), w.now)
    w = w.again()
    assert w.agent_calls.join_round(first, w.now).place.round == 1
    w.agent_calls.close_rounds(pb.CloseRoundsRequest(), w.now)
    assert w.agent_calls.join_round(pb.JoinRoundRequest(node="c", store="c:1", **ask), w.now).closed


def test_who_is_refused_after_the_end_may_take_its_time_to_end() -> None:
    """Its silence is no loss: an agent would replace it, for ever."""
    w = World()
    w.agent()
    w.register(11)
    w.ring(0)
    w.leave(0, finished=True)
    late = w.register(12, local_rank=1)
    assert not w.join(late).leave, "its process may still fail"
    w.agent("n", pb.AgentWorker(local_rank=0, pid=11, exited=True, code=0))
    assert w.join(late).leave
    w.tick(TIMEOUT_S - 1)
    w.agent()
    w.tick(TIMEOUT_S - 1)
    assert not w.agent().kill

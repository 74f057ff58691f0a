"""How the job of a training script ends."""

from __future__ import annotations

import pytest

from tests.unit.master.scripts.script_world import TIMEOUT_S, World
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def test_who_waits_for_a_place_does_not_hold_up_the_end_nor_make_it() -> None:
    w = World()
    w.agent("a", pb.AgentWorker(pid=11))
    w.agent("b", pid=2)
    assert not w.agent("c", pid=3, done=True).over, "it gave up waiting"
    assert w.agent("a", done=True).over
    assert w.agent("b", pid=2).over
    w.tick()
    assert w.job.state == "finishing"
    assert w.outcome.state == "finished"


def test_without_agents_it_is_finished_when_every_worker_said_so() -> None:
    w = World()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    w.leave(0, finished=True)
    w.tick()
    assert w.outcome is None
    assert w.beat(0).known, "its script may continue after its training"
    w.leave(1, finished=True)
    w.tick()
    assert w.job.state == "finished"


def test_who_waits_at_the_end_for_a_rank_0_that_is_lost_does_not_wait_for_ever() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    gone = pb.AgentWorker(local_rank=0, pid=11, exited=True, code=-9)
    assert not w.stand_by(1, ring=1, step=9).leave
    for _ in range(10):
        w.tick(1.0)
        w.agent()
        w.stand_by(1, ring=1, step=9)
    assert w.outcome is None, "rank 0 may save as long as it likes"
    w.agent("n", gone)
    for _ in range(62):
        w.tick(1.0)
        w.agent()
        w.stand_by(1, ring=1, step=9)
    assert w.outcome is not None
    assert "what rank 0 saves may be missing" in w.outcome.error


def test_who_takes_the_place_of_rank_0_ends_the_job() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    assert not w.stand_by(1, ring=1, step=9).leave
    w.agent("n", pb.AgentWorker(local_rank=0, pid=11, exited=True, code=-9))
    new = w.register(13)
    answer = w.join(new)
    assert (list(answer.ring.workers), answer.ring.source) == ([2, 1], 1)
    assert w.stand_by(1, ring=1, step=9).ring.number == 2
    assert not w.stand_by(1, ring=2, step=9).leave
    # Its last word was lost; the exit code says it too.
    w.agent("n", pb.AgentWorker(local_rank=0, pid=13, exited=True, code=0))
    assert w.stand_by(1, ring=2, step=9).leave


def test_workers_that_left_without_an_end_may_be_followed_by_others() -> None:
    w = World()
    w.register(11)
    w.ring(0)
    w.leave(0)
    w.tick()
    w.tick(50)
    assert w.outcome is None
    w.register(12)
    w.tick()
    w.tick(TIMEOUT_S)
    w.tick(50)
    assert w.outcome is None
    w.tick(11)
    assert w.outcome.exit_code == 1
    assert "nobody is left" in w.outcome.error


def test_it_is_finished_when_torchruns_nodes_closed_it_and_left() -> None:
    w = World()
    w.agent_calls.join_round(
        pb.JoinRoundRequest(node="a", store="a:1", min_nodes=1, max_nodes=1), w.now
    )
    w.agent_calls.close_rounds(pb.CloseRoundsRequest(), w.now)
    w.tick()
    assert (w.outcome, w.job.state) == (None, "finishing")
    w.agent_calls.leave_round(pb.LeaveRoundRequest(node="a"), w.now)
    w.tick()
    assert w.job.state == "finished"
    assert not w.job.workforce.awaits_outcome, (
        "torchrun does not ask: the port is free for the next job"
    )


def test_it_failed_when_an_agent_of_torchrun_closed_it_with_an_error() -> None:
    w = World()
    w.agent_calls.join_round(
        pb.JoinRoundRequest(node="a", store="a:1", min_nodes=1, max_nodes=1), w.now
    )
    w.agent_calls.close_rounds(pb.CloseRoundsRequest(error="rank 1 ended"), w.now)
    w.agent_calls.leave_round(pb.LeaveRoundRequest(node="a"), w.now)
    w.tick()
    assert (w.job.state, w.outcome.error) == ("failed", "rank 1 ended")


def test_it_is_stopped_when_torchruns_nodes_left_and_did_not_close_it() -> None:
    """Ctrl-C: nobody would come back to this master."""
    w = World()
    ask = {"min_nodes": 1, "max_nodes": 2, "last_call_s": 0.0}
    w.tick()
    for node in "ab":
        w.agent_calls.join_round(pb.JoinRoundRequest(node=node, store=f"{node}:1", **ask), w.now)
    w.register(11, node="a")
    w.agent_calls.leave_round(pb.LeaveRoundRequest(node="b"), w.now)
    w.tick()
    assert w.outcome is None
    w.agent_calls.leave_round(pb.LeaveRoundRequest(node="a"), w.now)
    w.tick()
    assert (w.job.lifecycle.over, w.job.state) == (True, "stopped")


def test_the_workers_of_a_node_that_is_in_no_round_any_more_are_dropped() -> None:
    w = World()
    ask = {"min_nodes": 1, "max_nodes": 2, "last_call_s": 0.0}
    for node in "ab":
        w.agent_calls.join_round(pb.JoinRoundRequest(node=node, store=f"{node}:1", **ask), w.now)
    w.register(11, node="a")
    w.register(21, node="b")
    w.ring(0, 1)
    w.agent_calls.leave_round(pb.LeaveRoundRequest(node="b"), w.now)
    w.agent_calls.join_round(pb.JoinRoundRequest(node="a", store="a:2", **ask), w.now)
    assert not w.beat(1).known
    assert w.beat(0).broken_ring == 1


def test_the_error_of_one_agent_ends_all() -> None:
    w = World()
    w.agent("a")
    w.agent("b", pid=2, error="train.py: boom", traceback="T")
    answer = w.agent("a")
    assert (answer.over, answer.error) == (True, "train.py: boom")
    assert (w.outcome.state, w.outcome.traceback) == ("failed", "T")


def test_stop_ends_agents_and_workers() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.ring(0)
    w.job.stop("asked to stop", w.now, at_once=True)
    assert w.agent().over
    assert w.agent().error == "the job was stopped: asked to stop"
    assert w.beat(0).drain
    assert w.join(0, ring=1, step=3).leave
    with pytest.raises(UsageError, match="is over"):
        w.register(12, local_rank=1)


def test_the_last_member_of_a_ring_that_stops_keeps_its_model() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    w.job.stop("SIGTERM", w.now)
    w.tick()
    answer = w.agent()
    assert (answer.over, answer.stopping) == (False, "SIGTERM")
    assert w.status().state == "stopping"
    with pytest.raises(UsageError, match="is over"):
        w.register(13, local_rank=2)
    for worker in (0, 1):
        heard = w.beat(worker, ring=1, steps=3)
        assert (heard.drain, heard.stopping) == (True, True)
    # One left a step before the other, which finds itself alone, and writes.
    w.leave(1)
    assert w.join(0, ring=1, step=3).ring.workers == [0]
    assert w.committed(0)
    assert not w.committed(1)
    w.tick()
    assert w.outcome is None
    w.leave(0)
    w.tick()
    answer = w.agent(done=True)
    assert (answer.over, answer.error) == (True, "the job was stopped: SIGTERM")
    assert w.outcome.state == "stopped"
    assert w.status().checkpoint == "/c/1"


def test_a_ring_that_hangs_stops_all_the_same() -> None:
    w = World()
    w.agent()
    w.register(11)
    w.ring(0)
    w.job.stop("SIGTERM", w.now)
    for _ in range(19):
        w.beat(0, ring=1)
        w.agent()
        w.tick(1)
    assert w.outcome is None
    w.beat(0, ring=1)
    w.agent()
    w.tick(1)
    assert w.agent().over
    last = "no last checkpoint: no worker came to the end of its step within 20 s"
    assert w.job.lifecycle.log.after(0)[-1].text == last

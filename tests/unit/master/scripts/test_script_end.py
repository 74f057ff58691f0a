"""How the job of a training script ends."""

from __future__ import annotations

import pytest

from master.state.calls import script_calls
from tests.unit.master.script_jobs import died, ring_of_two, script, torchrun
from tests.unit.master.world import TIMEOUT_S
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def test_it_is_finished_when_every_agent_is_done() -> None:
    w = script()
    w.agent("a", pb.AgentWorker(pid=11))
    w.agent("b", pb.AgentWorker(pid=12))
    w.agent("waits")
    assert not w.agent("gave up waiting", done=True).over
    assert not w.agent("a", done=True).over
    assert w.agent("b", done=True).over
    assert w.agent("waits").over
    w.tick()
    assert w.outcome.exit_code == 0
    assert not w.job.lifecycle.over, "others have not heard"
    for node in ("a", "b", "waits", "gave up waiting"):
        assert w.agent(node, done=True).over
    w.tick()
    assert (w.job.lifecycle.over, w.job.state) == (True, "finished")


def test_without_agents_it_is_finished_when_every_worker_said_so() -> None:
    w = torchrun()
    w.leave(0, finished=True)
    w.tick()
    assert w.outcome is None
    assert w.beat(0).known, "its script may continue after its training"
    w.leave(1, finished=True)
    w.tick()
    assert w.job.state == "finished"


@pytest.mark.parametrize("agents", [True, False])
def test_without_anybody_left_the_job_fails(agents: bool) -> None:
    w = script()
    if agents:
        w.agent()
    else:
        w.register(11)
        w.ring(0)
        w.leave(0)
    w.tick(TIMEOUT_S)
    w.tick(50)
    w.agent() if agents else w.register(12)
    w.tick()
    assert w.outcome is None, "it paused, or workers that left without an end are followed"
    w.tick(TIMEOUT_S + 1)
    w.tick(50)
    assert w.outcome is None
    w.tick(11)
    assert (w.outcome.state, w.outcome.exit_code) == ("failed", 1)
    w.tick(5)
    assert w.job.lifecycle.over


def test_a_first_ring_that_does_not_come_about_fails_the_job() -> None:
    w = script(least=2)

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
    assert "600 s (--rdzv-conf join_timeout)" in w.outcome.error
    assert "1 of at least 2 workers" in w.outcome.error


def test_who_is_refused_after_the_end_may_take_its_time_to_end() -> None:
    """Its silence is no loss: an agent would replace it, for ever."""
    w = script()
    w.agent()
    w.register(11)
    w.ring(0)
    w.leave(0, finished=True)
    late = w.register(12, local_rank=1)
    assert w.join(late) is None, "its process may still fail"
    w.agent("n", died(11, local_rank=0, code=0))
    assert w.join(late).leave
    w.tick(TIMEOUT_S - 1)
    w.agent()
    w.tick(TIMEOUT_S - 1)
    assert not w.agent().kill


def test_exit_code_0_inside_a_loop_is_no_end_of_the_script() -> None:
    """A replacement may join, and the others continue."""
    w = ring_of_two()
    w.agent("n", died(12, code=0, in_loop=True))
    assert w.said("worker-1 lost: ended with exit code 0 inside its loop; the other workers")
    assert w.register(13, local_rank=1) == 2
    assert w.join(2) is None
    assert w.join(0, ring=1, step=9).ring.workers == [0, 2]


def test_the_records_of_a_loop_that_was_left_are_told_at_the_end() -> None:
    w = ring_of_two()
    told = {"ring": 1, "position": 240, "pass_records": 400}
    w.beat(1, **told)
    for worker in (0, 1):
        w.beat(worker, **told, records_early=160)
        w.leave(worker, finished=True)
    w.agent("n", died(11, local_rank=0, code=0), died(12, code=0), done=True)
    status = w.status()
    assert (status.state, status.records.done, status.records_early) == ("finishing", 240, 160)


def test_who_waits_at_the_end_for_a_rank_0_that_is_lost_does_not_wait_for_ever() -> None:
    w = ring_of_two()

    def wait(seconds: int) -> None:
        for _ in range(seconds):
            w.stand_by(1, ring=1, step=9)
            w.tick(1.0)
            w.agent()

    wait(10)
    assert w.outcome is None, "rank 0 may save as long as it likes"
    w.agent("n", died(11, local_rank=0))
    wait(59)
    assert w.outcome is None
    wait(3)
    assert "rank 0" in w.outcome.error


@pytest.mark.parametrize("error", ["", "rank 1 ended"])
def test_it_ends_as_torchruns_nodes_closed_it_once_they_left(error: str) -> None:
    w = script()
    w.join_round("a", max_nodes=1)
    w.close_rounds(error)
    w.tick()
    assert (w.outcome, w.job.state) == (None, "finishing")
    w.leave_round("a")
    w.tick()
    assert (w.outcome.state, w.outcome.error) == ("failed" if error else "finished", error)
    assert not w.job.workforce.awaits_outcome, "torchrun does not ask"


def test_workers_of_torchrun_that_vanish_in_their_loop_are_no_success() -> None:
    w = script()
    w.join_round("a", max_nodes=1)
    w.register(11, node="a")
    w.ring(0)
    w.close_rounds()  # torchrun saw exit code 0
    w.leave_round("a")
    w.tick()
    assert (w.outcome.state, w.outcome.exit_code) == ("failed", 1)
    assert "before the end of their loop" in w.outcome.error


def test_it_is_stopped_when_torchruns_nodes_left_and_did_not_close_it() -> None:
    """Ctrl-C: nobody would come back to this master."""
    w = script()
    for node in "ab":
        w.join_round(node)
    w.register(11, node="a")
    w.leave_round("b")
    w.tick()
    assert w.outcome is None
    w.leave_round("a")
    w.tick()
    assert (w.job.lifecycle.over, w.job.state) == (True, "stopped")


def test_the_error_of_one_agent_ends_all() -> None:
    w = script()
    w.agent("a")
    w.agent("b", error="train.py: boom", traceback="T")
    answer = w.agent("a")
    assert (answer.over, answer.error) == (True, "train.py: boom")
    assert (w.outcome.state, w.outcome.traceback) == ("failed", "T")


class TestStop:
    def test_it_ends_agents_and_workers(self) -> None:
        w = ring_of_two()
        w.job.stop("asked to stop", w.now, at_once=True)
        assert w.agent().over
        assert w.agent().error.endswith("asked to stop")
        assert w.beat(0).drain
        assert w.join(0, ring=1, step=3).leave
        with pytest.raises(UsageError, match="is over"):
            w.register(13, local_rank=2)

    def test_workers_and_nodes_of_torchrun_hear_of_it(self) -> None:
        w = script()
        w.register(11)
        w.ring(0)
        w.join_round("t", max_nodes=1)
        w.job.stop("torch-edl stop", w.now)
        w.tick(1.0)
        assert not w.job.lifecycle.over
        assert w.beat(0).drain
        w.leave(0)
        w.tick(1.0)
        assert w.call(script_calls.get_round, pb.GetRoundRequest(node="t", round=1)).closed
        assert not w.job.lifecycle.over
        w.leave_round("t")
        w.tick()
        assert w.job.lifecycle.over

    def test_who_does_not_hear_of_it_is_not_waited_for(self) -> None:
        w = script()
        w.register(11)
        w.job.stop("torch-edl stop", w.now)
        w.tick(5.0)
        assert w.job.lifecycle.over

    def test_the_last_member_of_a_ring_keeps_its_model(self) -> None:
        w = ring_of_two()
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
        assert w.report_checkpoint(0)
        assert not w.report_checkpoint(1)
        w.tick()
        assert w.outcome is None
        w.leave(0)
        w.tick()
        answer = w.agent(done=True)
        assert (answer.over, w.outcome.state, w.outcome.error) == (True, "stopped", "SIGTERM")
        assert w.status().checkpoint == "/c/1"

    def test_a_ring_that_hangs_stops_all_the_same(self) -> None:
        w = ring_of_two()
        w.job.stop("SIGTERM", w.now)
        for _ in range(20):
            assert w.outcome is None
            w.beat(0, ring=1)
            w.agent()
            w.tick(1)
        assert w.agent().over
        assert w.texts()[-1].startswith("no last checkpoint")

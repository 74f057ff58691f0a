"""How the job of a training script ends."""

from __future__ import annotations

import pytest

from master.state.calls import script_calls
from master.state.workforce.deaths import CRASH_LIMIT, KILL_LIMIT
from tests.unit.master.script_jobs import on_nodes, ring_of_two, script, torchrun
from tests.unit.master.world import TIMEOUT_S
from torch_edl.errors import UsageError
from torch_edl.processes.launcher import ProcessFails
from torch_edl.processes.oom_kills import OOM_KILLED
from torch_edl.wire import master_pb2 as pb


def test_it_is_finished_when_every_process_has_come_to_its_end() -> None:
    w = on_nodes()
    w.exit("worker", 0, code=0)
    w.tick()
    assert w.outcome is None
    w.exit("worker", 1, code=0)
    w.tick()
    assert w.outcome.exit_code == 0
    assert not w.said("as asked")
    w.tick()
    assert (w.job.lifecycle.over, w.job.state) == (True, "finished")
    assert len(w.started) == 2


def test_processes_without_a_machine_are_not_waited_for_at_the_end() -> None:
    """Machines that never came, or have left, do not delay the others."""
    w = on_nodes(workers=4, scheduled=True)
    w.runs("worker", 0, 1)
    w.waits("worker", 2, 3)
    w.exit("worker", 0, code=0)
    w.tick()
    assert w.outcome is None
    w.exit("worker", 1, code=0)
    w.tick()
    assert w.outcome.state == "finished"


def test_a_process_that_is_lost_after_others_have_come_to_the_end_runs_again() -> None:
    w = on_nodes(workers=3)
    w.exit("worker", 0, code=0)
    w.exit("worker", 1, code=137, why="preempted", own_fault=False)
    for each in (w, w.restart()):
        each.tick()
        assert each.outcome is None
        assert [spec.slot for spec in each.started if spec.id == 3] == [1]
        each.exit("worker", 3, code=0)
        each.exit("worker", 2, code=0)
        each.tick()
        assert each.outcome.state == "finished"


def test_after_one_has_come_to_the_end_none_starts_in_a_new_place() -> None:
    w = on_nodes()
    w.exit("worker", 0, code=0)
    w.scale(4)
    assert not w.begun()


def test_without_agents_it_is_finished_when_every_worker_said_so() -> None:
    w = torchrun()
    w.leave(0, finished=True)
    w.tick()
    assert w.outcome is None
    assert w.beat(0).known, "its script may continue after its training"
    w.leave(1, finished=True)
    w.tick()
    assert w.job.state == "finished"


@pytest.mark.parametrize("nodes", [True, False])
def test_without_anybody_left_the_job_fails(nodes: bool) -> None:
    if nodes:
        w = on_nodes(scheduled=True)
        w.runs("worker", 0, 1)
        w.taken("worker", 0)
        w.taken("worker", 1)
        w.tick(5)  # a machine that refuses workers is asked again later
        w.waits("worker", 2, 3)
    else:
        w = script()
        w.register(11)
        w.ring(0)
        w.leave(0)
    w.tick(TIMEOUT_S)
    w.tick(40)
    w.runs("worker", 2) if nodes else w.register(12)
    w.tick()
    assert w.outcome is None, "it paused, or workers that left without an end are followed"
    if nodes:
        w.taken("worker", 2)
        w.tick(1)
        w.waits("worker", 4)
    w.tick(TIMEOUT_S + 1)
    w.tick(40)
    assert w.outcome is None
    w.tick(21)
    assert (w.outcome.state, w.outcome.exit_code) == ("failed", 1)
    w.tick(5)
    assert w.job.lifecycle.over


def test_a_first_ring_that_does_not_come_about_fails_the_job() -> None:
    w = on_nodes(least=2)

    def wait(seconds: int, *workers: int) -> None:
        for _ in range(seconds):
            w.tick(1.0)
            for worker in workers:
                w.beat(worker)
                w.join(worker)

    wait(1000)  # before its loader a script may take what time it needs
    worker = w.enter(0).worker_id
    wait(599, worker)
    assert w.outcome is None
    wait(3, worker)
    assert "600 s (--rdzv-conf join_timeout)" in w.outcome.error
    assert "1 of at least 2 workers" in w.outcome.error


def test_who_is_refused_after_the_end_may_take_its_time_to_end() -> None:
    """Its silence is no loss: it would be replaced, for ever."""
    w = on_nodes()
    w.enter(0)
    w.ring(0)
    w.leave(0, finished=True)
    late = w.enter(1).worker_id
    assert w.join(late) is None, "its process may still fail"
    w.exit("worker", 0, code=0)
    assert w.join(late).leave
    w.tick(TIMEOUT_S - 1)
    w.tick(TIMEOUT_S - 1)
    assert not w.stopped


def test_exit_code_0_inside_a_loop_is_no_end_of_the_script() -> None:
    """A replacement may join, and the others continue."""
    w = ring_of_two(max_restarts=1)
    w.exit("worker", 1, code=0, open_loop="", error="train.py: rank 1 ended inside its loop")
    assert w.said("worker-1 ended with exit code 0 inside its loop; the other workers")
    w.tick()
    assert w.enter(2).worker_id == 2
    assert w.join(2) is None
    assert w.join(0, ring=1, step=9).ring.workers == [0, 2]


def test_the_records_of_a_loop_that_was_left_are_told_at_the_end() -> None:
    w = ring_of_two()
    told = {"ring": 1, "position": 240, "pass_records": 400}
    w.beat(1, **told)
    for worker in (0, 1):
        w.beat(worker, **told, records_early=160)
        w.leave(worker, finished=True)
    w.complete_script()
    status = w.status()
    assert (w.outcome.state, status.records.done, status.records_early) == ("finished", 240, 160)


def test_who_waits_at_the_end_for_a_rank_0_that_is_lost_does_not_wait_for_ever() -> None:
    w = ring_of_two()

    def wait(seconds: int) -> None:
        for _ in range(seconds):
            w.stand_by(1, ring=1, step=9)
            w.tick(1.0)

    wait(10)
    assert w.outcome is None, "rank 0 may save as long as it likes"
    w.exit("worker", 0, signal=9)
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


class TestFailures:
    def test_an_error_of_a_script_ends_the_job_with_its_traceback(self) -> None:
        w = ring_of_two()
        w.exit("worker", 1, code=1, error="train.py: rank 1 ended: boom", traceback="T")
        assert (w.outcome.state, w.outcome.traceback) == ("failed", "T")
        assert w.outcome.error == "train.py: rank 1 ended: boom"
        w.tick()
        assert [(stop.id, stop.grace_s) for stop in w.stopped] == [(0, 20.0)]

    def test_failures_of_one_moment_count_once(self) -> None:
        """``--max-restarts`` of torchrun."""
        w = ring_of_two(max_restarts=1)
        for worker in (0, 1):
            w.exit("worker", worker, code=5, error="boom")
        assert w.begun(0.1) == ["worker-2", "worker-3"]
        w.exit("worker", 2, code=6, error="again")
        assert w.outcome.error == "again"

    def test_steps_that_were_made_since_separate_failures(self) -> None:
        w = ring_of_two(max_restarts=2)
        w.exit("worker", 1, code=5, error="boom")
        w.tick(20.0)
        w.beat(0, ring=1, steps=9)
        w.exit("worker", 0, code=5, error="boom")
        w.tick()
        w.exit("worker", 2, code=5, error="last")
        w.tick(1.0)
        assert w.outcome is None, "the two failed at once"
        w.exit("worker", 4, code=5, error="last")
        assert w.outcome.error == "last"

    def test_the_next_master_knows_the_failures(self) -> None:
        w = ring_of_two(max_restarts=1)
        w.exit("worker", 1, code=5, error="boom")
        w.tick(1.0)
        w = w.restart()
        w.exit("worker", 2, code=5, error="last")
        assert w.outcome.error == "last"

    @pytest.mark.parametrize("restarts", [0, 1])
    def test_the_others_end_before_the_process_that_fails_the_job(self, restarts: int) -> None:
        w = ring_of_two(max_restarts=restarts)
        w.apply(ProcessFails(role="worker", id=1))
        w.tick(0.1)
        assert [stop.id for stop in w.stopped] == ([] if restarts else [0])
        assert len(w.started) == 2, "none starts meanwhile"
        w.exit("worker", 1, code=1, error="boom")
        assert (w.outcome is None) == bool(restarts)

    def test_workers_that_are_killed_before_the_first_step_end_the_job(self) -> None:
        w = on_nodes(workers=1)
        for _ in range(KILL_LIMIT):
            assert w.outcome is None
            w.tick(2.0)
            w.kill(w.started[-1].id)
        assert "killed 30 times in a row" in w.outcome.error

    def test_workers_that_do_not_fit_into_memory_end_the_job_soon(self) -> None:
        w = on_nodes(workers=1)
        how = {"signal": 9, "why": OOM_KILLED, "own_fault": True, "error": "no memory"}
        for _ in range(CRASH_LIMIT + 1):
            assert w.outcome is None
            w.tick(2.0)
            w.exit("worker", w.started[-1].id, **how)
        assert w.outcome.error == "no memory"

    @pytest.mark.parametrize("how", [{"signal": 9}, {"signal": 15}, {"code": 143}])
    def test_workers_that_are_preempted_are_replaced_for_ever(self, how: dict[str, int]) -> None:
        w = ring_of_two()
        w.beat(0, ring=1, steps=1)
        for death in range(50):
            w.exit("worker", w.started[-1].id, **how)
            assert bool(w.begun(0.1)) == (death < 3), "after some, there is a pause"
            w.tick(1.0)
        assert w.outcome is None

    def test_a_worker_that_never_registers_may_run_as_long_as_it_likes(self) -> None:
        w = on_nodes()
        w.tick(10_000.0)
        assert not w.stopped


class TestStop:
    def test_it_ends_workers(self) -> None:
        w = ring_of_two()
        w.job.stop("asked to stop", w.now, at_once=True)
        assert w.outcome.reason == "the job was stopped: asked to stop"
        assert w.beat(0).drain
        assert w.join(0, ring=1, step=3).leave
        with pytest.raises(UsageError, match="is over"):
            w.enter(1, pid=99)
        w.tick()
        assert [(stop.id, stop.grace_s) for stop in w.stopped] == [(0, 0.0), (1, 0.0)]

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
        assert w.status().state == "stopping"
        with pytest.raises(UsageError, match="is over"):
            w.enter(1, pid=99)
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
        assert (w.outcome.state, w.outcome.error) == ("stopped", "SIGTERM")
        assert w.status().checkpoint == "/c/1"

    def test_a_ring_that_hangs_stops_all_the_same(self) -> None:
        w = torchrun()
        w.job.stop("SIGTERM", w.now)
        for _ in range(20):
            assert w.outcome is None
            w.beat(0, ring=1)
            w.tick(1)
        assert w.outcome.state == "stopped"
        assert w.texts()[-1].startswith("no last checkpoint")

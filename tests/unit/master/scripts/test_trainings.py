"""Several trainings of a script, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.state.actions import Saved, SaveServers
from master.state.calls import script_calls
from tests.unit.master.said import CHANGED
from tests.unit.master.script_jobs import (
    UNBOUND,
    on_nodes,
    on_servers,
    ring_of_two,
    torchrun,
)
from tests.unit.master.world import World
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def in_training_2(w: World) -> World:
    """Both workers complete training 1, and are in the ring of training 2."""
    w.leave(0, finished=True)
    assert w.enter(0, training=2) is None, "worker 1 may still need its ring"
    assert w.stand_by(1, ring=1, step=9).leave
    w.leave(1, finished=True)
    assert w.enter(0, training=2).worker_id == 0
    assert w.enter(1, training=2).worker_id == 1
    w.ring(0, 1)
    return w


def test_a_training_begins_when_all_have_left_the_one_before() -> None:
    w = in_training_2(ring_of_two())
    ring = w.job.ring.current
    assert (ring.number, list(ring.workers), ring.fresh, ring.heal) == (2, [0, 1], True, True)
    assert w.said("training 2 of the script begins") == 1
    assert w.enter(0, training=2).worker_id == 0, "the answer was lost"
    assert (w.beat(0, ring=2).broken_ring, w.beat(1, ring=2).broken_ring) == (0, 0)


def test_a_worker_that_left_a_training_is_not_removed_from_the_next_one_by_a_late_call() -> None:
    w = in_training_2(ring_of_two())
    w.leave(0, finished=True, training=1)
    assert w.beat(0, ring=2).known
    assert w.beat(0, ring=2).broken_ring == 0


def test_steps_and_records_go_on_over_trainings_and_masters() -> None:
    w = ring_of_two()
    for worker in (0, 1):
        w.beat(worker, ring=1, steps=10, position=320, pass_records=320)
    w = in_training_2(w)
    assert w.job.done() == (320, 10)
    w = w.restart()
    w.beat(0, ring=2, steps=4, position=128, pass_index=1, pass_records=640, records_before=320)
    assert w.job.done() == (448, 14)
    w.beat(1, training=1, ring=1, steps=99, position=99, pass_index=9)
    assert w.job.done() == (448, 14), "a late word of training 1"
    assert w.enter(0, training=2).worker_id == 0


def test_the_end_of_one_training_is_not_the_end_of_the_job() -> None:
    w = in_training_2(ring_of_two())
    w.tick()
    assert (w.outcome, w.job.state) == (None, "running")
    for worker in (0, 1):
        w.leave(worker, finished=True)
    w.complete_script()
    assert w.outcome.state == "finished"


def test_a_process_that_dies_between_two_trainings_is_not_waited_for() -> None:
    w = ring_of_two()
    w.leave(0, finished=True)
    assert w.enter(0, training=2) is None
    w.exit("worker", 1, signal=9)
    assert w.enter(0, training=2).worker_id == 0
    assert w.ring(0).workers == [0], "a ring of fewer than --workers: the other may not come back"


def test_a_process_that_did_not_join_in_time_leaves() -> None:
    w = on_nodes(workers=3)
    late = w.enter(2).worker_id
    for worker in (0, 1):
        w.enter(worker)
    w.ring(0, 1)
    for worker in (0, 1):
        w.leave(worker, finished=True)
    assert w.beat(late).known, "it may still warm up"
    assert w.enter(0, training=2).worker_id == 0
    assert w.join(late).leave
    assert not w.beat(late).drain


@pytest.mark.parametrize("kept", ["", "/ck/step-9", "/job/final/step-9"])
def test_a_replacement_continues_with_the_checkpoint_of_a_training_that_is_over(kept: str) -> None:
    w = ring_of_two()
    if kept:
        w.report_checkpoint(0, kept)
    w = in_training_2(w).restart()
    w.exit("worker", 1, signal=9)
    assert w.begun() == ["worker-2"]
    new = w.enter(2)
    if not kept:
        assert new is None, "it waits: it has no model"
        assert w.restart().enter(2) is None
        w.leave(0, finished=True)
        assert w.enter(2) is None, "there may be a third training"
        w.exit("worker", 0, code=0)
        assert w.enter(2).leave
        return
    assert (new.trained, new.worker_id) == (kept, 0)
    assert w.enter(2, missing=kept) is None, "its machine does not have the folder"
    assert w.enter(2, training=2).worker_id == 2
    assert w.join(2) is None
    assert w.join(0, ring=2, step=9).ring.workers == [0, 2]


@pytest.mark.parametrize("kept", ["", "/ck/step-9"])
def test_a_script_whose_processes_are_all_lost_starts_again(kept: str) -> None:
    w = ring_of_two()
    if kept:
        w.report_checkpoint(0, kept)
    w = in_training_2(w)
    w.report_checkpoint(0, "/ck/training-2/step-5")
    w.kill(0, 1)
    w.tick()
    assert w.enter(2).worker_id == 2
    assert w.enter(3).worker_id == 3
    assert w.said("no process of training 2 is left: the script starts again") == 1
    ring = w.ring(2, 3)
    assert (ring.number, ring.fresh, ring.restored_from) == (3, True, kept)
    w.leave(2, finished=True)
    assert w.enter(2, training=2) is None
    w.leave(3, finished=True)
    assert w.enter(2, training=2).worker_id == 2
    assert w.ring(2).restored_from == "/ck/training-2/step-5"


def test_a_later_training_does_not_begin_with_the_model_of_load() -> None:
    manifest = Manifest(job="j", strategy="allreduce", steps=5, shards=1)
    saved = Saved(Path("/c/step-5"), manifest)
    w = in_training_2(ring_of_two(dir="/c", resume=True, resumed=saved))
    assert w.job.ring.current.restored_from == ""


def test_the_folder_of_the_models_is_told_to_scripts_and_not_shown() -> None:
    w = on_nodes()
    assert w.enter(0).models == "/job/final"
    w.ring(0)
    assert w.report_checkpoint(0, "/job/final/step-9")
    assert w.status().checkpoint == ""
    w.leave(0, finished=True)
    assert w.enter(0, training=2)
    w.ring(0)
    assert w.report_checkpoint(0, "/job/final/training-2/step-4")
    assert w.status().checkpoint == ""
    assert not w.said("checkpoint")


def test_a_stopped_job_begins_no_training() -> None:
    w = ring_of_two()
    w.leave(0, finished=True)
    w.job.stop("SIGTERM", w.now)
    assert w.enter(0, training=2).leave


def test_trainings_are_refused_where_they_cannot_be() -> None:
    with pytest.raises(UsageError, match="the same number of times"):
        ring_of_two().enter(0, training=3)
    with pytest.raises(UsageError, match="under torchrun; use torch-edl run"):
        torchrun().enters(11, training=2)


# ---- on parameter servers ----


def train_all(w: World, worker: int) -> None:
    while not w.job.tasks.trained:
        w.do(worker, w.task(worker))
    w.tick()


def second_on_servers(*, kept: str = "", left: int = 0) -> World:
    """Return a job whose worker 0 completed training 1, all but ``left`` tasks, and is in
    training 2, before its servers run. The last checkpoint of training 1 was taken."""
    w = on_servers(dir=kept)
    for _ in range(4 - left):
        w.do(0, w.task(0))
    meeting = pb.MeetRequest(worker_id=0, passes=1, number=1)
    meeting.round = w.call(script_calls.meet, meeting).part.round
    meeting.result = "0.5"
    assert w.call(script_calls.meet, meeting).result == "0.5"
    w.leave(0, finished=True)
    assert w.enter(0, training=2) is None, "the last checkpoint is not written"
    w.tick()
    w.save()
    w.tick()
    assert w.enter(0, training=2).worker_id == 0
    return w


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_training_on_servers_begins_with_a_model_and_data_of_its_own(
    left: int, restarts: bool
) -> None:
    w = second_on_servers(left=left)
    assert w.said("training 2 of the script begins") == 1
    done, steps = 200 - 50 * left, 20 - 5 * left
    assert w.job.done() == (done, steps)
    w = w.restart() if restarts else w
    model = w.fleet.model
    assert (model.incarnation, model.restored_from) == (2, ""), "new servers, a new model"
    assert w.report_model(0, UNBOUND) is None, "they do not run yet"
    w.servers_up()
    assert w.report_data(0, records=40, epochs=1, batch_size=4, records_per_task=20)
    assert w.job.config.data.batch_size == 4
    first = w.task(0)
    assert (first.task_id, first.offset, first.end) == (0, 0, 20)
    assert w.lease(0, incarnation=1).next == CHANGED
    train = w.status()
    assert (train.records.done, train.records.total) == (done, 240)
    w.do(0, first)
    train_all(w, 0)
    assert w.job.done() == (done + 40, steps + 10)
    w.leave(0, finished=True)
    w.complete_script()
    assert w.outcome.state == "finished"
    assert w.status().records_early == 50 * left


def test_a_training_on_servers_waits_for_all_who_are_in_the_one_before() -> None:
    w = on_servers()
    other = w.enter(1).worker_id
    train_all(w, 0)
    w.leave(0, finished=True)
    assert w.enter(0, training=2) is None
    w.tick()
    assert not [each for each in w.actions if isinstance(each, SaveServers)], "it may still train"
    w.exit("worker", other, signal=9)
    assert other not in w.job.members
    w.tick()
    late = w.enter(2).worker_id
    assert w.enter(0, training=2) is None, "the replacement catches up in training 1"
    assert w.report_data(late)
    w.leave(late, finished=True)
    assert w.enter(0, training=2) is None
    w.tick()
    w.save()
    w.tick()
    assert w.enter(0, training=2).worker_id == 0


@pytest.mark.parametrize("kept", ["", "/ck"])
def test_a_replacement_has_the_model_of_a_training_that_was_on_servers(kept: str) -> None:
    w = second_on_servers(kept=kept)
    folder = Path(kept or "/job/final")
    one = str(folder / "step-0000000020")
    w = w.restart()
    new = w.enter(1)
    assert new.trained == one
    assert list(new.results) == [pb.MeetingResult(passes=1, number=1, value="0.5")]
    assert w.enter(1, missing=one) is None
    assert w.enter(1, training=2).worker_id == 1
    assert w.job.checkpoints.root == folder / "training-2"
    assert w.status().checkpoint == ""


def test_a_script_on_servers_whose_processes_are_all_lost_starts_again() -> None:
    w = second_on_servers(kept="/ck")
    w.report_model(0, UNBOUND)
    w.servers_up()
    assert w.report_data(0)
    w.do(0, w.task(0))
    assert w.job.done() == (250, 25)
    w.kill(0, 1)
    w.tick()
    assert w.enter(2).worker_id == 2
    assert w.said("no process of training 2 is left: the script starts again") == 1
    assert w.fleet.model.restored_from == "/ck/step-0000000020"
    w.report_model(2, UNBOUND)
    w.servers_up()
    assert w.report_data(2)
    assert w.job.tasks.trained, "it goes on from the last checkpoint of training 1"
    assert w.job.done() == (200, 20)
    w.leave(2, finished=True)
    w.tick()
    assert w.enter(2, training=2).worker_id == 2
    assert (w.fleet.model.restored_from, w.job.done()) == ("", (200, 20))


def test_later_trainings_on_servers_are_resumed() -> None:
    first = on_servers()
    train_all(first, 0)
    data = first.made(first.job.tasks.main.progress()).manifest
    saved = [Saved(Path(f"/ck/{n}step-0000000020"), data) for n in ("", "training-2/")]
    w = on_servers(dir="/ck", resume=True, resumed=saved[0], resumed_later={2: saved[1]})
    assert w.job.tasks.trained
    w.leave(0, finished=True)
    w.tick()
    assert w.enter(0, training=2).worker_id == 0
    assert w.fleet.model.restored_from == "/ck/training-2/step-0000000020"
    w.report_model(0, UNBOUND)
    w.servers_up()
    assert w.report_data(0)
    assert w.job.tasks.trained
    assert w.job.done() == (400, 40)

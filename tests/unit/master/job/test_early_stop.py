"""A model file that is evaluated at the end of each epoch, and stops when it gets no better."""

from __future__ import annotations

import json

from master.state.job.restart import to_state
from tests.unit.master.model_file_world import World, every_record
from torch_edl.wire import master_pb2 as pb


def world(**options) -> World:
    """Its loss is the same after each epoch, so the second is not better than the first."""
    w = World(epochs=5, eval_records=4, early_stop="loss:1", **options)
    w.up()
    return w


def test_no_record_of_the_next_epoch_is_leased_before_the_evaluation() -> None:
    w = world(workers=2)
    kinds = []
    for _ in range(100):
        answer = w.lease(0)
        if answer is None or answer.next != pb.LeaseResponse.LEASED:
            w.tick(0.1)
            continue
        (lease,) = answer.leases
        kinds.append((lease.kind, lease.epoch))
        w.do(0, lease)
        if lease.kind == pb.TASK_EVALUATE:
            break
    assert kinds[-1] == (pb.TASK_EVALUATE, 0)
    assert {kind for kind, _ in kinds[:-1]} == {pb.TASK_TRAIN}
    assert {epoch for _, epoch in kinds[:-1]} == {0}
    assert w.counted == every_record(1)


def test_the_training_stops_and_the_model_of_the_last_epoch_is_saved() -> None:
    w = world(output="/out")
    w.work()
    assert [result.steps for result in w.job.tasks.evaluations.results] == [16, 32]
    assert w.counted == every_record(2)
    assert "early stop after epoch 2: loss has not been better for 1 epoch than" in " ".join(
        w.texts("info")
    )
    assert w.save().manifest.steps == 32
    assert w.job.milestones.epoch_ends == [{"loss": 0.25}, {"loss": 0.25}]


def test_workers_hear_of_the_ends_of_epochs() -> None:
    w = world(output="/out")
    w.work(tasks=8)
    w.tick(0.1)
    beat = pb.HeartbeatRequest(worker_id=0)
    assert w.calls.heartbeat(beat, w.now).epochs_open == 1
    w.work()
    answer = w.calls.heartbeat(pb.HeartbeatRequest(worker_id=0, epochs_heard=1), w.now)
    assert [dict(end.values) for end in answer.epoch_ends] == [{"loss": 0.25}]


def test_a_restarted_master_knows_that_the_training_has_stopped() -> None:
    w = world(output="/out")
    w.work()
    left = json.loads(json.dumps(to_state(w.job)))
    again = World(epochs=5, eval_records=4, early_stop="loss:1", output="/out", left=left)
    assert again.job.tasks.main.complete
    assert again.job.tasks.main.space.epochs == 2

"""Checkpoints: the periodic ones, and that of the best epoch, which is exported."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from master.runtime import job_files
from master.state.actions import Flush, Flushed, Prune, SaveServers, WriteOutput
from tests.unit.master.world import World, every_record, running
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, DataConfig, JobConfig, TrainConfig
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def taken(w: World, tasks: int) -> list[SaveServers]:
    """Do a number of tasks of two steps each. Returns the checkpoints that are asked for then."""
    w.work(tasks=tasks)
    w.tick()
    found, w.actions = w.actions, []
    assert all(isinstance(action, SaveServers) for action in found)
    return found


def test_each_crossing_once_and_one_at_a_time() -> None:
    w = running(dir="/ck", every=5, epochs=2)
    assert not taken(w, 2)
    (first,) = taken(w, 1)
    assert str(first.root) == "/ck"
    assert not taken(w, 3), "the first one runs"
    saved = w.saved(first.progress, first.incarnation)
    assert saved.manifest.steps == 6
    (second,) = taken(w, 0)
    w.saved(second.progress, second.incarnation)
    assert not taken(w, 1)
    assert taken(w, 1)
    rest = running(dir="/ck", every=5, epochs=2, resume=True, resumed=saved)
    assert not taken(rest, 1)
    assert taken(rest, 1), "the next multiple after the resume"


def test_a_periodic_one_at_the_end_is_not_the_last() -> None:
    w = running(dir="/ck", every=16)
    w.work(tasks=7)
    lease = w.task()
    w.beat(steps=16, records=32)
    w.tick()
    periodic = w.effect(SaveServers)
    w.do(0, lease)
    w.saved(periodic.progress, periodic.incarnation)
    assert not w.job.checkpoints.complete
    (last,) = taken(w, 0)
    w.saved(last.progress, last.incarnation)
    assert w.job.checkpoints.complete


# ---- the best epoch ----


def world(**options) -> World:
    """A job of three epochs with 16 steps each, which evaluates at the end of each epoch."""
    options = {"epochs": 3, "eval_records": 4, "keep_best": "loss", "output": "/out"} | options
    w = World(**options)
    w.up()
    return w


def epoch(w: World, loss: float) -> None:
    """Trains an epoch and evaluates it, as far as it goes without a checkpoint."""
    w.loss_sum = 4 * loss
    w.tick()
    w.work()
    w.tick()


def is_saving(w: World) -> bool:
    return any(isinstance(action, SaveServers) for action in w.actions)


@pytest.mark.parametrize(
    ("option", "losses", "best"),
    [("loss", (0.5, 0.2, 0.4), 2), ("loss", (0.5, 0.3), 2), ("loss:max", (0.3, 0.2), 1)],
)
def test_the_output_is_the_model_of_the_best_epoch(
    option: str, losses: tuple[float, ...], best: int
) -> None:
    w = world(keep_best=option, epochs=len(losses))
    saved = []
    for number, loss in enumerate(losses, 1):
        epoch(w, loss)
        assert w.counted == every_record(number), "the next epoch has begun before the checkpoint"
        saved.append(w.save())
    metrics = [{"loss": x} if i <= best else {} for i, x in enumerate(losses, 1)]
    assert [each.manifest.metrics for each in saved] == metrics
    w.tick()
    path, value = saved[best - 1].path, losses[best - 1]
    assert w.effect(WriteOutput) == WriteOutput(path, Path("/out"))
    assert not is_saving(w)
    assert f"best checkpoint so far: loss {value} at step {16 * best}" in w.texts("info")
    assert w.status().best == pb.BestModel(metric="loss", value=value, steps=16 * best)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("option", ["loss:max", "loss:min"])
def test_a_value_that_is_not_finite_is_never_the_best(option: str, value: float) -> None:
    w = world(keep_best=option)
    epoch(w, value)
    assert w.counted == every_record(3), "an epoch waits for a checkpoint of no use"
    last = w.save()
    w.tick()
    assert w.effect(WriteOutput).checkpoint == last.path


def test_the_rotation_spares_the_best_one() -> None:
    w = world(output="", dir="/ck", keep=1)
    epoch(w, 0.2)
    best = w.save()
    assert best.path.parent == Path("/ck")
    epoch(w, 0.4)
    last = w.save()
    (prune,) = (action for action in w.tick() if isinstance(action, Prune))
    assert prune == Prune(last.path, 1, best.path)


def test_a_master_that_dies_before_the_checkpoint_has_its_successor_write_it() -> None:
    w = world()
    epoch(w, 0.5)
    w.save()
    epoch(w, 0.2)
    assert is_saving(w)
    assert w.state()["checkpoints"]["best"].endswith("step-0000000016")
    again = w.restart(evaluated=[w.job.checkpoints.best.saved])
    assert again.lease(0) is None, "the next epoch has begun before the checkpoint"
    assert again.save().manifest.metrics == {"loss": 0.2}
    assert again.job.checkpoints.best.saved.manifest.steps == 32
    again.tick()
    lease = again.task()
    assert (lease.kind, lease.epoch) == (pb.TASK_TRAIN, 2)


def test_a_successor_knows_the_checkpoint_that_was_written() -> None:
    w = world()
    epoch(w, 0.5)
    again = w.restart(w.state(), evaluated=[w.save()])
    again.tick()
    assert not is_saving(again)
    assert again.task().epoch == 1


def test_a_model_that_is_lost_before_its_checkpoint_is_evaluated_again() -> None:
    w = world(servers=1)
    epoch(w, 0.5)
    effect = w.effect(SaveServers)
    (server,) = w.job.fleet.alive("ps")
    w.exit("ps", server.id, signal=9)
    w.saved(effect.progress, effect.incarnation, effect.manifest.metrics)  # too late
    assert w.job.checkpoints.best.saved is None
    w.all_up()
    assert w.job.done() == (0, 0)
    epoch(w, 0.4)
    assert w.save().manifest.metrics == {"loss": 0.4}


def test_a_job_that_resumes_keeps_the_better_model_of_the_earlier_job() -> None:
    w = world(output="", dir="/ck", epochs=2)
    epoch(w, 0.2)
    best = w.save()
    epoch(w, 0.4)
    last = w.save()
    again = world(dir="/ck", resume=True, resumed=last, evaluated=[best])
    epoch(again, 0.3)
    assert again.save().manifest.steps == 48
    again.tick()
    assert again.effect(WriteOutput).checkpoint == best.path


def test_an_evaluation_after_the_last_checkpoint_marks_it() -> None:
    w = world(output="", dir="/ck", keep_best="", epochs=1)
    w.work()
    last = w.save()
    again = world(dir="/ck", resume=True, resumed=last, epochs=1)
    epoch(again, 0.3)
    marked = again.save()
    assert (marked.path, marked.manifest.metrics) == (last.path, {"loss": 0.3})
    again.tick()
    assert again.effect(WriteOutput).checkpoint == last.path


def test_servers_apply_what_waits_for_its_quorum_before_each_evaluation() -> None:
    w = world(mode="sync", epochs=2)
    for loss in (0.5, 0.4):
        w.tick()
        w.work()
        flush = w.effect(Flush)
        assert (w.actions, w.job.tasks.evaluations.queues()) == ([], [])
        w.apply(Flushed(flush.incarnation, success=False))
        w.tick()
        w.apply(Flushed(w.effect(Flush).incarnation, success=True))
        epoch(w, loss)
        w.save()
    w.tick()
    assert w.effect(WriteOutput)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("--keep-best auc: there is nothing to evaluate on", {"eval": ()}),
        ("--keep-best auc: there is no place for the best model", {"output": ""}),
        ("--keep-best auc evaluates at the ends of epochs", {"eval_every": 5}),
        ("--keep-best auc:up: expected a metric", {"keep_best": "auc:up"}),
        ("--keep-best :min: expected a metric", {"keep_best": ":min"}),
    ],
)
def test_what_cannot_work_is_refused(message: str, options: dict) -> None:
    given = {"eval": ("e.csv",), "output": "/out", "eval_every": 0, "keep_best": "auc"} | options
    with pytest.raises(UsageError, match=message):
        JobConfig(
            name="j",
            model_file="/m.py",
            data=DataConfig(eval=given["eval"]),
            train=TrainConfig(keep_best=given["keep_best"], eval_every=given["eval_every"]),
            checkpoint=CheckpointConfig(output=given["output"]),
        )


def test_a_resumed_job_finds_the_evaluated_checkpoints(tmp_path: Path) -> None:
    config = JobConfig(
        name="j",
        model_file="/m.py",
        data=DataConfig(eval=("e.csv",)),
        train=TrainConfig(keep_best="auc"),
        checkpoint=CheckpointConfig(dir=str(tmp_path), resume=True),
    )
    for steps, metrics in ((4, {}), (8, {"auc": 0.9}), (12, {"auc": 0.8})):
        manifest = Manifest(job="j", strategy="local", steps=steps)
        layout.save(tmp_path, steps, lambda _, m=manifest: m, metrics=metrics)
    assert [each.manifest.steps for each in job_files.evaluated(config, None)] == [8, 12]
    noted = {"checkpoints": {"best": str(layout.step_dir(tmp_path, 8))}}
    assert [each.manifest.steps for each in job_files.evaluated(config, noted)] == [8]
    gone = {"checkpoints": {"best": str(layout.step_dir(tmp_path, 99))}}
    assert job_files.evaluated(config, gone) == []

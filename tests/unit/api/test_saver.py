"""When checkpoints are taken, and what becomes of one whose process was replaced, or dies."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.waiting import HANG_S
from tests.warm import FORKS
from torch_edl.api.job import Job
from torch_edl.api.saver import Saver, TrainedSaver, settings, under_torchrun
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import OWNER_FILE
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import UsageError
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring.reducer import ReplicatedTorchModel


def engine(step: int) -> RingEngine:
    model = nn.Linear(2, 2)
    one = RingEngine(
        ReplicatedTorchModel(Replica(model, [torch.optim.SGD(model.parameters(), lr=1.0)])), None
    )
    one.replica.position.step = step
    return one


class RingRendezvous:
    """Says whether a process may commit, whether the master takes it, and what was asked."""

    def __init__(self, *, may: bool = True, accepts: bool = True) -> None:
        self.may = may
        self.accepts = accepts
        self.asked: list[str] = []

    def may_commit(self) -> bool:
        self.asked.append("may")
        return self.may

    def report_checkpoint(self, directory: str) -> bool:
        assert layout.read(directory)
        self.asked.append("committed")
        return self.accepts


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != OWNER_FILE)


def test_one_is_taken_each_so_many_steps_and_the_newest_stay(tmp_path: Path) -> None:
    saver = Saver(CheckpointConfig(dir=str(tmp_path), every=2, keep=2), None)
    for step in range(1, 8):
        saver.after_step(engine(step))
        saver.close()
    assert names(tmp_path) == ["step-0000000004", "step-0000000006"]
    saver.save_last(engine(7))
    assert names(tmp_path) == ["step-0000000006", "step-0000000007"]


def test_only_rank_0_writes(tmp_path: Path) -> None:
    saver = Saver(CheckpointConfig(dir=str(tmp_path), every=1), None)
    other = engine(1)
    other.membership.rank = 1
    saver.after_step(other)
    saver.save_last(other)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("rank", "keeps"), [(0, False), (1, False), (0, True)])
def test_without_checkpoints_rank_0_keeps_the_model_for_later_trainings(
    tmp_path: Path, rank: int, keeps: bool
) -> None:
    models, rendezvous = tmp_path / "models", RingRendezvous()
    config = CheckpointConfig(dir=str(tmp_path / "ck") if keeps else "")
    saver = Saver(config, rendezvous, models=str(models))  # type: ignore[arg-type]
    one = engine(4)
    saver.save_for_later(one)
    assert not models.exists(), "it was in no ring"
    one.membership.ring, one.membership.rank = 1, rank
    saver.save_for_later(one)
    assert models.exists() == (rank == 0 and not keeps)
    assert not models.exists() or names(models) == ["step-0000000004"]
    assert rendezvous.asked == (["may", "committed"] if models.exists() else [])


def test_values_of_a_training_on_servers_are_numbered_with_its_loops(tmp_path: Path) -> None:
    told = [(1, 1, "0.5"), (0, 1, '"a"'), (0, 2, "null"), (3, 1, "[1]"), (1, 2, "2")]
    # a value, a value, loop 1, two values, loops 2 and 3, a value
    found = {"5": "a", "6": None, "8": 0.5, "9": 2, "12": [1]}
    assert TrainedSaver(tmp_path, told).results(5) == found


@pytest.mark.parametrize("may", [True, False])
def test_a_process_that_was_replaced_commits_nothing(tmp_path: Path, may: bool) -> None:
    rendezvous: Any = RingRendezvous(may=may)
    saver = Saver(CheckpointConfig(dir=str(tmp_path), every=1), rendezvous)
    saver.after_step(engine(1))
    saver.close()
    assert names(tmp_path) == (["step-0000000001"] if may else [])
    assert rendezvous.asked == (["may", "committed"] if may else ["may"])


def test_while_the_master_knows_an_older_checkpoint_the_older_one_stays(tmp_path: Path) -> None:
    rendezvous: Any = RingRendezvous()
    saver = Saver(CheckpointConfig(dir=str(tmp_path), every=1, keep=1), rendezvous)
    saver.save_last(engine(1))
    rendezvous.accepts = False  # it does not answer, or has replaced this process just now
    saver.save_last(engine(2))
    assert names(tmp_path) == ["step-0000000001", "step-0000000002"]
    rendezvous.accepts = True
    saver.save_last(engine(3))
    assert names(tmp_path) == ["step-0000000003"]


def dying(root: str, where: str) -> None:
    """Kill this process at one place of the last checkpoint."""

    def reach(name: str) -> bool:
        if name == where:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    class Rendezvous:
        def may_commit(self) -> bool:
            return reach("before the commit")

        def report_checkpoint(self, directory: str) -> bool:
            return reach("before the report")

    seal, prune = layout.seal, layout.prune
    layout.seal = lambda *given: reach("before the manifest") and seal(*given)  # type: ignore[assignment]
    layout.prune = lambda *given: reach("after the report") and prune(*given)  # type: ignore[assignment]
    rendezvous: Any = Rendezvous()
    Saver(CheckpointConfig(dir=root, keep=1, resume=True), rendezvous).save_last(engine(2))


@pytest.mark.parametrize(
    ("where", "newest", "left"),
    [
        ("before the manifest", 1, 2),
        ("before the commit", 1, 2),
        ("before the report", 2, 2),
        ("after the report", 2, 2),
    ],
)
def test_a_process_that_dies_while_it_saves(
    tmp_path: Path, where: str, newest: int, left: int
) -> None:
    Saver(CheckpointConfig(dir=str(tmp_path)), None).save_last(engine(1))
    process = FORKS.Process(target=dying, args=(str(tmp_path), where))
    process.start()
    process.join(HANG_S)
    assert process.exitcode == -signal.SIGKILL
    assert len(names(tmp_path)) == left, "the older checkpoint, and the new one or what is left"
    assert layout.newest(tmp_path) == layout.step_dir(tmp_path, newest)
    found = engine(0)
    found.replica.restore(layout.step_dir(tmp_path, newest), values_only=False)
    assert found.steps == newest
    # Another process takes its place.
    Saver(CheckpointConfig(dir=str(tmp_path), keep=1, resume=True), None).save_last(engine(3))
    assert names(tmp_path) == ["step-0000000003"]


def test_what_a_crash_left_behind_is_written_anew(tmp_path: Path) -> None:
    left = layout.step_dir(tmp_path, 1)
    left.mkdir()
    layout.temporary_dir(tmp_path).mkdir()
    (left / "half").write_text("x")
    saver = Saver(CheckpointConfig(dir=str(tmp_path), every=1), None)
    saver.after_step(engine(1))
    saver.close()
    assert "half" not in names(left)
    assert layout.newest(tmp_path) == left
    assert names(tmp_path) == [left.name]


def test_checkpoints_of_an_earlier_job_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    saver = Saver(CheckpointConfig(dir=str(tmp_path)), None)
    saver.save_last(engine(3))
    with pytest.raises(UsageError, match=r"checkpoint_dir=.*belongs to the job"):
        Saver(CheckpointConfig(dir=str(tmp_path), resume=True), None)
    saver.release()
    with pytest.raises(UsageError, match="pass resume=True"):
        Saver(CheckpointConfig(dir=str(tmp_path)), None)
    again = Saver(CheckpointConfig(dir=str(tmp_path), resume=True), None)
    assert again.newest() == layout.step_dir(tmp_path, 3)


@pytest.mark.parametrize(("training", "folder"), [(1, "."), (2, "training-2")])
def test_the_command_line_goes_first(tmp_path: Path, training: int, folder: str) -> None:
    given = CheckpointConfig(dir=str(tmp_path), every=7, keep=2)
    session: Any = SimpleNamespace(
        config=JobConfig(name="j", kind="script", model_file="/m.py", checkpoint=given),
        master=SimpleNamespace(address="127.0.0.1:1"),
        worker_id=0,
        ring=0,
        training=training,
        models="",
        heartbeat=None,
        progress=None,
        close=lambda: None,
    )
    job = Job(session, CheckpointConfig(dir="mine"), seed=0, check_every=0, on_resize=None)
    try:
        assert job._saver._config == replace(given, dir=str(tmp_path / folder))
        with pytest.raises(UsageError, match="give each training a folder of its own"):
            Job(session, CheckpointConfig(), seed=0, check_every=0, on_resize=None)
    finally:
        job.close()


def test_under_torchrun_a_run_goes_on_from_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = CheckpointConfig(dir=str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this-one")
    assert not under_torchrun(here).resume
    Saver(here, None).save_last(engine(3))
    # A node that joins or leaves starts all again, and torchrun does not count that.
    assert under_torchrun(here).resume
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert not under_torchrun(here).resume
    with pytest.raises(UsageError, match="of an earlier job"):
        Saver(under_torchrun(here), None)
    # Without a name of the run, only a restart shows that it is the same run.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert not under_torchrun(here).resume
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert under_torchrun(here).resume
    assert not under_torchrun(CheckpointConfig()).resume


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"every": -1, "directory": "x"}, "checkpoint_every -1: must be 0 or more"),
        ({"keep": 0}, "keep_checkpoints 0: must be 1 or more"),
        ({"every": 2}, "^checkpoint_every 2: add checkpoint_dir"),
        ({"resume": True}, "^resume: add checkpoint_dir"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any], words: str) -> None:
    usual = {"directory": "", "every": 0, "keep": 3, "resume": False}
    with pytest.raises(UsageError, match=words):
        settings(**{**usual, **wrong})

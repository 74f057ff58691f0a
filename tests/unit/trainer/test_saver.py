"""When checkpoints are taken, and what becomes of one whose ring was given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_edl.checkpoint import layout
from torch_edl.config import CheckpointConfig
from torch_edl.engine.replica import Replica
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import UsageError
from torch_edl.trainer.saver import Saver, Settings


def engine(step: int) -> RingEngine:
    model = nn.Linear(2, 2)
    one = RingEngine(Replica(model, [torch.optim.SGD(model.parameters(), lr=1.0)]), None)
    one.replica.position.step = step
    return one


class RingRendezvous:
    """Says whether a ring may commit, and what it was asked."""

    def __init__(self, *, accept: bool) -> None:
        self.accept = accept
        self.asked: list[str] = []

    def may_commit(self, ring: int) -> bool:
        self.asked.append("may")
        return self.accept

    def report_checkpoint(self, ring: int, directory: str) -> None:
        assert layout.read(directory)
        self.asked.append("committed")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_is_taken_each_so_many_steps_and_the_newest_stay(tmp_path: Path) -> None:
    saver = Saver(Settings(directory=str(tmp_path), every=2, keep=2), None)
    for step in range(1, 8):
        saver.after_step(engine(step))
        saver.close()
    assert names(tmp_path) == ["step-0000000004", "step-0000000006"]
    saver.save_last(engine(7))
    assert names(tmp_path) == ["step-0000000006", "step-0000000007"]


def test_only_rank_0_writes(tmp_path: Path) -> None:
    saver = Saver(Settings(directory=str(tmp_path), every=1), None)
    other = engine(1)
    other._membership.rank = 1
    saver.after_step(other)
    saver.save_last(other)
    assert names(tmp_path) == []


@pytest.mark.parametrize("accept", [True, False])
def test_a_ring_that_is_not_the_newest_commits_nothing(tmp_path: Path, accept: bool) -> None:
    rendezvous: Any = RingRendezvous(accept=accept)
    saver = Saver(Settings(directory=str(tmp_path), every=1), rendezvous)
    saver.after_step(engine(1))
    saver.close()
    assert names(tmp_path) == (["step-0000000001"] if accept else [])
    assert rendezvous.asked == (["may", "committed"] if accept else ["may"])


def test_what_a_crash_left_behind_is_written_anew(tmp_path: Path) -> None:
    left = layout.step_dir(tmp_path, 1)
    left.mkdir()
    (left / "half").write_text("x")
    saver = Saver(Settings(directory=str(tmp_path), every=1), None)
    saver.after_step(engine(1))
    saver.close()
    assert "half" not in names(left)
    assert layout.newest(tmp_path) == left


def test_checkpoints_of_an_earlier_job_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    saver = Saver(Settings(directory=str(tmp_path)), None)
    saver.save_last(engine(3))
    with pytest.raises(UsageError, match="pass resume=True"):
        Saver(Settings(directory=str(tmp_path)), None)
    again = Saver(Settings(directory=str(tmp_path), resume=True), None)
    assert again.newest() == layout.step_dir(tmp_path, 3)


def test_the_command_line_goes_first(tmp_path: Path) -> None:
    own = Settings(directory="mine", every=1)
    assert own.under(CheckpointConfig()) == own
    config = CheckpointConfig(dir=str(tmp_path), every=7, keep=2)
    assert own.under(config) == Settings(directory=str(tmp_path), every=7, keep=2)


def test_under_torchrun_a_run_goes_on_from_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Settings(directory=str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this-one")
    assert not here.under_torchrun().resume
    Saver(here, None).save_last(engine(3))
    # A node that joins or leaves starts all again, and torchrun does not count that.
    assert here.under_torchrun().resume
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert not here.under_torchrun().resume
    with pytest.raises(UsageError, match="of an earlier job"):
        Saver(here.under_torchrun(), None)
    # Without a name of the run only a restart says so.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert not here.under_torchrun().resume
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert here.under_torchrun().resume
    assert not Settings().under_torchrun().resume


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"every": -1, "directory": "x"}, "checkpoint_every=-1"),
        ({"keep": 0}, "keep_checkpoints=0"),
        ({"every": 2}, "need checkpoint_dir"),
        ({"resume": True}, "need checkpoint_dir"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Settings(**wrong)

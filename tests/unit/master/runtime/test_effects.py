"""What takes long is done beside the job: with values of its own, without the job's lock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from master.runtime.effects import Effects
from master.runtime.service import Service
from master.state.actions import (
    CheckpointSaved,
    CommitLocal,
    KeepPreprocessing,
    PreprocessingKept,
    Prune,
)
from tests.unit.master.world import World
from tests.waiting import wait_for
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config.parts import PREPROCESSING_FILE


def test_old_checkpoints_are_removed_without_the_lock_of_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = Manifest(job="j", strategy="local", steps=2)
    paths = [layout.save(tmp_path, steps, lambda _: manifest)[0] for steps in (2, 4, 6)]
    stuck = layout.step_dir(tmp_path, 1)
    (stuck / layout.MANIFEST).mkdir(parents=True)  # to unlink a folder is an OSError
    service = Service(World().job, clock=time.monotonic, log_path=lambda role, id: "", cores=1)
    effects = Effects(token="t")
    effects.start(service.apply)
    with service.changed:
        effects.submit(Prune(paths[-1], 1))
        wait_for(lambda: [path.exists() for path in paths] == [False, False, True])
    wait_for(lambda: f"old checkpoint {stuck} cannot be removed" in caplog.text)


def test_the_fitted_preprocessing_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    kept = tmp_path / "job" / PREPROCESSING_FILE
    kept.parent.mkdir()
    (tmp_path / "ck").mkdir()
    effects = Effects(token="t", preprocessing=kept)
    event = effects.execute(KeepPreprocessing(b"fitted"))
    assert event == PreprocessingKept()
    assert kept.read_bytes() == b"fitted"
    for steps in (2, 4):
        folder = tmp_path / "new"
        folder.mkdir()
        (folder / "model").write_bytes(b"xyz")
        manifest = Manifest(job="j", strategy="local", steps=steps, files={"model": 3})
        action = CommitLocal(folder, manifest, 0, tmp_path / "ck")
        event = effects.execute(action)
        assert isinstance(event, CheckpointSaved)
        assert layout.read(event.saved.path).files == {"model": 3, PREPROCESSING_FILE: 6}
        assert (event.saved.path / PREPROCESSING_FILE).read_bytes() == b"fitted"
    failed = Effects(token="t", preprocessing=kept / "file").execute(KeepPreprocessing(b""))
    assert isinstance(failed, PreprocessingKept)
    assert "exists" in failed.error

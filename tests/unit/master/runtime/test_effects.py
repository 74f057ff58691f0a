"""What takes long is done beside the job: with values of its own, without the job's lock."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from master.runtime.effects import Effects
from master.runtime.service import Service
from master.state.actions import (
    CheckpointSaved,
    CommitLocal,
    KeepPreprocessing,
    PreprocessingKept,
)
from tests.unit.master.world import World
from tests.waiting import HANG_S
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.data.resuming import identity
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

SHARDS = [Shard("a", 40)]
SPACE = TaskSpace(SHARDS, 4, batch_size=2)


class Thing:
    """A job whose snapshots are made here; the effects thread makes checkpoints of them."""

    def __init__(self, root: Path) -> None:
        w = World(strategy="local", dir=str(root), every=2, keep=1)
        self.job = w.job
        self.service = Service(
            self.job, clock=time.monotonic, log_path=lambda role, id: "", cores=1
        )
        self.effects = Effects(token="t")
        self.effects.start(self.service.apply)
        self.root = root
        self.manifest = Manifest(
            job="j", strategy="local", steps=0, files={"model": 3}, data=identity(w.config, SHARDS)
        )

    def save(self, steps: int) -> None:
        """Wait until the job knows of the checkpoint after a number of steps."""
        folder = self.root / f".snapshot-{steps}"
        folder.mkdir(parents=True)
        (folder / "model").write_bytes(b"xyz")
        progress = Watermarks(steps // 2, {})
        made = self.job.checkpoints
        with self.service.changed:
            assert made.is_due(steps, settled=False)
            made.take(pb.Cluster(), progress, self.manifest, SPACE, steps=steps, settled=False)
            made.take_actions()
            before = made.newest
            self.effects.submit(
                CommitLocal(folder, replace(self.manifest, steps=steps), 0, self.root)
            )
            assert self.service.changed.wait_for(lambda: made.newest is not before, 10)
            for action in made.take_actions():
                self.effects.submit(action)


@pytest.fixture
def thing(tmp_path: Path) -> Thing:
    return Thing(tmp_path / "ck")


def test_an_old_checkpoint_that_cannot_be_removed_stops_nothing(
    thing: Thing, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = layout.step_dir(thing.root, 1)
    (stuck / layout.MANIFEST).mkdir(parents=True)  # to unlink a folder is an OSError
    for steps in (2, 4, 6):
        thing.save(steps)
    assert thing.job.lifecycle.outcome is None
    manifest = layout.read(layout.step_dir(thing.root, 6))
    assert (manifest.job, manifest.strategy, manifest.steps) == ("j", "local", 6)
    assert manifest.data["shards"] == [["a", 40]]
    assert f"old checkpoint {stuck} cannot be removed" in caplog.text


def test_old_checkpoints_are_removed_without_the_lock(
    thing: Thing, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing.save(2)
    old, real = layout.step_dir(thing.root, 2), shutil.rmtree
    free: dict[object, bool] = {}
    removed = threading.Event()

    def take_lock(path: object) -> None:
        free[path] = thing.service.changed.acquire(timeout=HANG_S)
        if free[path]:
            thing.service.changed.release()

    def watched(path: object, **more: bool) -> None:
        other = threading.Thread(target=take_lock, args=(path,))  # the lock is reentrant
        other.start()
        other.join()
        real(path, **more)
        if path == old:
            removed.set()

    monkeypatch.setattr(shutil, "rmtree", watched)
    thing.save(4)
    assert removed.wait(HANG_S)
    assert free[old]
    assert layout.complete(thing.root) == [layout.step_dir(thing.root, 4)]


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

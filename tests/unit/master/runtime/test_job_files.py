"""What a master finds when it begins, of its own job and of others."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from master.runtime.job_files import claim, newest, preprocessing
from master.state.actions import Saved
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.config.parts import PREPROCESSING_FILE


def test_a_restarted_master_takes_no_checkpoint_of_another_job_for_its_own(tmp_path: Path) -> None:
    config = JobConfig(name="j", model_file="/m.py", checkpoint=CheckpointConfig(dir=str(tmp_path)))
    own = claim(config, "token")
    assert own is not None

    def save(steps: int, job: str, run: str) -> Path:
        manifest = Manifest(job=job, strategy="local", steps=steps)
        return layout.save(tmp_path, steps, lambda _: manifest, run=run)[0]

    state = {"fleet": {"strategy": "local"}, "checkpoints": {"newest": ""}}
    assert newest(config, state, own) is None
    save(4, "j", own.run)
    committed = save(8, "j", own.run)
    # As another job left it there that took the folder while there was no master.
    foreign = save(99, "other", "r")
    found = newest(config, state, own)
    assert found is not None
    assert (found.path, found.manifest.steps) == (committed, 8)
    state["checkpoints"]["newest"] = str(foreign)
    found = newest(config, state, own)
    assert found is not None, "the job resumed it"
    assert found.path == foreign
    own.release()


def test_a_job_begins_with_the_preprocessing_of_its_model(tmp_path: Path) -> None:
    kept, model = tmp_path / "job" / "file", tmp_path / "model"
    model.mkdir()
    (model / PREPROCESSING_FILE).write_bytes(b"loaded")
    fresh = JobConfig(name="j", model_file="/m.py")
    load = replace(fresh, checkpoint=CheckpointConfig(load=str(model)))
    assert preprocessing(kept, fresh, None, restarted=False) == b""
    assert preprocessing(kept, load, None, restarted=False) == b"loaded"
    # A master that is restarted finds what the master before fitted or loaded.
    shutil.rmtree(model)
    assert preprocessing(kept, load, None, restarted=True) == b"loaded"
    kept.write_bytes(b"fitted")
    assert preprocessing(kept, fresh, None, restarted=True) == b"fitted"
    # Of an earlier job of this name.
    assert preprocessing(kept, fresh, None, restarted=False) == b""
    model.mkdir()
    (model / PREPROCESSING_FILE).write_bytes(b"resumed")
    saved = Saved(model, Manifest(job="j", strategy="ps", steps=1))
    assert preprocessing(kept, fresh, saved, restarted=False) == b"resumed"

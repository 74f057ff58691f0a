"""What a master finds when it begins, of its own job and of others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from master.runtime.job_files import EventFile, claim, newest, preprocessing
from master.state.actions import Saved
from master.state.lifecycle import EventLog
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.events import JobFailed, Other
from torch_edl.wire import event_messages


def test_a_restarted_master_takes_no_checkpoint_of_another_job_for_its_own(tmp_path: Path) -> None:
    config = JobConfig(name="j", model_file="/m.py", checkpoint=CheckpointConfig(dir=str(tmp_path)))
    own = claim(config, "token")
    assert own is not None

    def save(steps: int, job: str, run: str) -> Path:
        manifest = Manifest(job=job, strategy="local", steps=steps)
        return layout.save(tmp_path, steps, lambda _: manifest, run=run)[0]

    state = {"fleet": {"strategy": "local"}, "checkpoints": {"newest": "", "root": str(tmp_path)}}
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


def test_a_master_that_goes_on_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events, journal = EventLog(), EventFile(path)
    events.add(Other(severity="info", message="ring 1"), 1.0)
    events.add(JobFailed(error="no", traceback="Traceback"), 2.0)
    journal.write(events.after(journal.written))
    journal.write(events.after(journal.written))
    events, journal = EventLog(), EventFile(path)
    events.continue_after(journal.written, journal.newest())
    assert [event.text for event in events.after(0)] == ["ring 1", "no"]
    assert event_messages.from_message(events.after(0)[1]).traceback == "Traceback"
    assert events.after(journal.written) == []
    events.add(Other(severity="info", message="the master is back"), 3.0)
    assert [event.sequence for event in events.after(2)] == [3]
    journal.write(events.after(journal.written))
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["sequence"] for event in told] == [1, 2, 3]
    assert told[1] == {
        "sequence": 2,
        "time": 2.0,
        "level": "error",
        "kind": "job_failed",
        "text": "no",
        "fields": {"error": "no", "traceback": "Traceback"},
    }


def test_a_disk_that_refuses_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events, journal = EventLog(), EventFile(tmp_path / "gone" / "events.jsonl")
    for number in (1, 2):
        events.add(Other(severity="info", message="x"), 1.0)
        journal.write(events.after(journal.written))
        assert journal.written == number
    assert caplog.text.count("events are not kept") == 1


def test_a_line_that_a_full_disk_cut_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events, journal = EventLog(), EventFile(path)
    for text in ("one", "two"):
        events.add(Other(severity="info", message=text), 1.0)
    journal.write(events.after(0))
    path.write_bytes(path.read_bytes()[:-20])
    journal = EventFile(path)
    assert journal.written == 1
    assert [event.text for event in journal.newest()] == ["one"]
    events = EventLog()
    events.continue_after(journal.written)
    events.add(Other(severity="info", message="the master is back"), 3.0)
    journal.write(events.after(journal.written))
    first, _, last = path.read_text().splitlines()
    assert [json.loads(line)["text"] for line in (first, last)] == ["one", "the master is back"]
    assert EventFile(path).written == 2

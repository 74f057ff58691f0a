"""Journals of a running job are damaged: what cannot be read takes the model to its checkpoint, or
is left out with ``--repair``."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

RECORDS = 1000
FLAGS = ["--durability", "journal", "--batch-size", "8", "--records-per-task", "64"]
FLAGS += ["--workers", "2", "--ps", "2"]
CHECKPOINTS = ["--checkpoint-dir", "DIR", "--checkpoint-every", "20"]


def flip(path: Path) -> None:
    """Changes a byte in the middle."""
    with open(path, "r+b") as file:
        at = path.stat().st_size // 2
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def damage(job: Any, shard: Path, name: str) -> None:
    """Of all servers, while they are dead: no successor reads before."""
    (master,) = job.pids("master")
    os.kill(master, signal.SIGSTOP)
    for pid in job.pids("ps"):
        os.kill(pid, signal.SIGKILL)
    flip(sorted(shard.glob(name))[0])
    os.kill(master, signal.SIGCONT)


def said(job: Any, pattern: str) -> bool:
    """Whether an event has it."""
    return any(re.search(pattern, event.text) for event in job.status().events)


@pytest.mark.parametrize(
    "name", ["journal.json", pytest.param("incarnation-*/*.log", marks=pytest.mark.slow)]
)
def test_a_damaged_journal_is_named_and_the_model_restored(
    start_job: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    journals = tmp_path / "disk" / "count"
    other = journals / "of-another-run"
    other.mkdir(parents=True)
    job = start_job(RECORDS, *FLAGS, *CHECKPOINTS, "--journal-dir", str(tmp_path / "disk"))
    job.wait_for(lambda: job.done() > 300)
    (shard,) = journals.glob("*/model-1/shard-0-of-2")
    damage(job, shard, name)
    job.wait_for(lambda: said(job, "cannot restore shard 0.* the servers restart from .*step-"))
    if name.endswith("log"):
        assert said(job, r"record \d+, at byte .*; 1 record cannot be read, \d+ behind .*--repair")
    job.go_on()
    job.check()
    assert list(journals.iterdir()) == [other]
    assert f"{other}: journals of another run" in job.log.read_text()


def test_a_repaired_server_lacks_one_update_and_counts_none_twice(
    start_job: Callable[..., Any],
) -> None:
    job = start_job(RECORDS, *FLAGS, *CHECKPOINTS, "--repair")
    job.wait_for(lambda: job.done() > 300)
    (shard,) = (job.folder / "journal").glob("**/shard-0-of-2")
    damage(job, shard, "incarnation-*/*.log")
    job.wait_for(
        lambda: said(job, "goes on without 1 update of shard 0, lost .* record .* at byte")
    )
    # A server after that one, and a master, know it too.
    before = set(job.pids("ps"))
    job.kill("ps", 2)
    job.kill("master")
    job.wait_for(lambda: len(job.running("ps") - before) == 2)
    job.go_on()
    assert job.finish() == 0, job.report()
    assert job.summary()["updates_lost"] == 1, job.report()
    assert "updates lost in damaged journals: 1" in job.log.read_text()
    assert "restart from" not in job.log.read_text()
    rows = load_file(job.output / "embeddings" / "rows.safetensors")
    counted = dict(zip(rows["ids"].tolist(), rows["vectors"].tolist(), strict=True))
    assert set(counted) <= set(range(RECORDS))
    assert all(value in (0, 1) for row in counted.values() for value in row)
    lost = RECORDS - sum(row[0] for row in counted.values())
    assert 0 <= lost <= 8
    for total in load_file(job.output / "model.safetensors")["total"].tolist():
        assert total in (RECORDS, RECORDS - 8)

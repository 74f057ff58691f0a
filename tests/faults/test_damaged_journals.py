"""Journals of a running job are damaged: what cannot be read takes the model to its checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECORDS = 1000
FLAGS = ["--durability", "journal", "--batch-size", "8", "--records-per-task", "64"]
FLAGS += ["--workers", "2", "--ps", "2", "--checkpoint-dir", "DIR", "--checkpoint-every", "20"]


def flip(path: Path) -> None:
    """Changes a byte in the middle."""
    with open(path, "r+b") as file:
        at = path.stat().st_size // 2
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("name", ["journal.json", "incarnation-*/*.log"])
def test_a_damaged_journal_is_named_and_the_model_restored(
    start_job: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    shard = tmp_path / "disk" / "count" / "journal" / "model-1" / "shard-0-of-2"
    # Of an earlier run of this name, which nobody continues.
    shard.mkdir(parents=True)
    (shard / "journal.json").write_text("{}")
    job = start_job(RECORDS, *FLAGS, "--journal-dir", str(tmp_path / "disk"))
    job.wait_for(lambda: job.done() > 300)
    # No successor reads before the damage is done.
    (master,) = job.pids("master")
    os.kill(master, signal.SIGSTOP)
    for pid in job.pids("ps"):
        os.kill(pid, signal.SIGKILL)
    flip(sorted(shard.glob(name))[0])
    os.kill(master, signal.SIGCONT)
    job.wait_for(lambda: any("cannot restore shard 0" in e.text for e in job.status().events))
    job.go_on()
    job.check()
    assert not shard.exists()

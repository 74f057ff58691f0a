"""Journals of a running job are damaged: what cannot be read takes the model to its checkpoint, or
is left out with ``--repair``."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import KEEP, TASKS

RECORDS = 1000
FLAGS = ["--durability", "journal", *TASKS, *KEEP, "--workers", "2", "--ps", "2"]


def flip(path: Path, bit: int, share: float = 0.5) -> None:
    """Changes a bit of a byte, of the one in the middle by default."""
    with open(path, "r+b") as file:
        at = int(path.stat().st_size * share)
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def damage(job: Any, shard: Path, name: str, bit: int = 0, share: float = 0.5) -> None:
    """Damage a journal while all servers are dead, so that no successor has read it before."""
    (master,) = job.pids("master")
    os.kill(master, signal.SIGSTOP)
    for pid in job.pids("ps"):
        os.kill(pid, signal.SIGKILL)
    flip(sorted(shard.glob(name))[0], bit, share)
    os.kill(master, signal.SIGCONT)


def said(job: Any, pattern: str) -> bool:
    """Whether an event has it."""
    return any(re.search(pattern, event.text) for event in job.status().events)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bit"),
    [("journal.json", 0), ("journal.json", 7), ("incarnation-*/*.log", 0)],
    ids=["another run", "no UTF-8", "a record"],
)
def test_a_damaged_journal_is_named_and_the_model_restored(
    start_job: Callable[..., Any], tmp_path: Path, name: str, bit: int
) -> None:
    journals = tmp_path / "disk" / "count"
    other = journals / "of-another-run"
    other.mkdir(parents=True)
    job = start_job(RECORDS, *FLAGS, "--journal-dir", str(tmp_path / "disk"))
    job.wait_for(lambda: job.done() > 300)
    (shard,) = journals.glob("*/model-1/shard-0-of-2")
    damage(job, shard, name, bit)
    job.wait_for(lambda: said(job, "cannot restore shard 0.* the servers restart from .*step-"))
    if name.endswith("log"):
        assert said(job, r"record \d+, at byte .*; 1 record cannot be read, \d+ behind .*--repair")
    job.check()
    assert list(journals.iterdir()) == [other]
    assert f"{other}: journals of another run" in job.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_bit_that_flips_anywhere_costs_no_record(
    start_job: Callable[..., Any], seed: int
) -> None:
    """In the description, or in a segment: where nobody could count what is lost, the model goes
    back to its checkpoint."""
    chance = random.Random(seed)
    job = start_job(RECORDS, *FLAGS)
    job.wait_for(lambda: job.done() > 300)
    (shard,) = (job.folder / "journal").glob("*/model-1/shard-0-of-2")
    name = "incarnation-*/*.log" if seed % 3 == 2 else "journal.json"
    before = set(job.pids("ps"))
    damage(job, shard, name, chance.randrange(8), chance.uniform(0, 0.9))
    job.wait_for(lambda: said(job, "cannot restore shard 0"))
    job.wait_for(lambda: len(job.running("ps") - before) == 2)
    job.check()


@pytest.mark.slow
def test_a_repaired_server_lacks_one_update_and_counts_none_twice(
    start_job: Callable[..., Any],
) -> None:
    job = start_job(RECORDS, *FLAGS, "--repair", "--workers", "1", "--no-shuffle")
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
    job.end_well()
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

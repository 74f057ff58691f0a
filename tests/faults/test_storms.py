"""Every record counts once, dense and by rows, whatever is killed, and nothing goes back."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.faults.conftest import EDL, ModelJob
from tests.faults.storms import storm
from tests.waiting import HANG_S

DELAY_S = 0.04  # of a minibatch
KINDS = [
    ("mixed", "journal"),
    ("workers", "checkpoint"),
    ("again", "journal"),
    ("servers", "journal"),
    ("together", "journal"),
    ("scaling", "journal"),
    ("masters", "journal"),
    ("mixed", "replica"),
    ("servers", "replica"),
    ("scaling", "replica"),
    ("masters", "replica"),
    ("workers", "replica"),
    ("again", "replica"),
    ("together", "replica"),
    ("scaling", "checkpoint"),
]
SEEDS = 45
FAST = {0, 8}
_OVER = "the last fault is over"


def _cases() -> list[object]:
    found = []
    for seed in range(SEEDS):
        kind, durability = KINDS[seed % len(KINDS)]
        marks = [] if seed in FAST else [pytest.mark.slow]
        name = f"{seed}-{kind}-{durability}"
        found.append(pytest.param(seed, kind, durability, marks=marks, id=name))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "kind", "durability"), _cases())
def test_every_record_counts_once(
    start_job: Callable[..., ModelJob], seed: int, kind: str, durability: str
) -> None:
    # The training takes about as long as the storm.
    for_s, records = (4.0, 1000) if seed in FAST else (10.0, 2400)
    what = storm(seed, kind, durability, for_s)
    job = start_job(records, *what.flags, delay_s=DELAY_S, quorum=what.quorum)
    plan = job.log.with_name("storm.toml")
    plan.write_text(what.plan)
    job.wait_for(lambda: job.done() > 0, 120)
    chaos = subprocess.Popen(
        [*EDL, "chaos", job.name, "--plan", str(plan), "--json"],
        env=job.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    began = time.monotonic()
    for after_s, option, number in what.scales:
        job.wait_for(lambda s=after_s: time.monotonic() - began > s)
        job.scale(option, number)
    events = job.folder / "events.jsonl"
    job.wait_for(lambda: _OVER in events.read_text() or chaos.poll() is not None, for_s + 60)
    job.go_on()
    out, told = chaos.communicate(timeout=HANG_S)
    assert chaos.returncode == 0, f"{what}\n{out}{told}\n{job.report()}"
    verdict = json.loads(out)
    assert verdict["kills"]
    assert verdict["rolled_back"]["times"] == 0
    job.check()

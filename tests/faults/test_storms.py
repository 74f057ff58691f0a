"""Every record counts once, dense and by rows, whatever is killed, and nothing goes back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.faults.conftest import MODEL, ModelJob
from tests.faults.storms import storm

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
FAST = {0}
SHUFFLING = MODEL.with_name("shuffling_model.py")


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
    # Each kind of storm with each of the models.
    model = SHUFFLING if (seed // len(KINDS) + seed) % 3 == 0 else MODEL
    job = start_job(records, *what.flags, delay_s=DELAY_S, quorum=what.quorum, model=model)
    plan = job.log.with_name("storm.toml")
    plan.write_text(what.plan)
    job.wait_for(lambda: job.done() > 0, 120)
    with job.storm("--plan", str(plan)) as storming:
        began = time.monotonic()
        for after_s, option, number in what.scales:
            job.wait_for(lambda s=after_s: time.monotonic() - began > s)
            job.scale(option, number)
    verdict = storming.verdict
    assert verdict["kills"]
    assert verdict["rolled_back"]["times"] == 0
    job.check()

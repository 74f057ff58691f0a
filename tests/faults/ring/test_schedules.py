"""Rings are hurt in every way; every record is counted exactly once in every epoch all the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM

import pytest

from tests.faults.ring.job import Network, RingJob
from tests.faults.ring.plan import (
    ALL,
    At,
    Cut,
    Grown,
    Inside,
    KillMaster,
    Phase,
    Plan,
    Signal,
    random_plan,
)

# Of one schedule; most take a quarter of it on two quiet cores.
LIMIT_S = 100.0


@pytest.fixture
def carry_out(tmp_path: Path) -> Callable[[Plan], RingJob]:
    """Runs a plan to its end, with all checks."""

    def run(plan: Plan) -> RingJob:
        why_not = Network.why_not() if plan.machines == 2 else ""
        if why_not:
            pytest.skip(why_not)
        started = time.monotonic()
        job = RingJob(tmp_path, plan)
        try:
            job.carry_out()
            job.finish(max(10.0, LIMIT_S - (time.monotonic() - started)))
        finally:
            job.close()
        return job

    return run


def test_a_kill_in_the_step_and_a_stop(carry_out: Callable[[Plan], RingJob]) -> None:
    """One dies while gradients travel; rank 0 stops, and is given up by the master."""
    plan = Plan(
        deaths=(Inside(Phase.BACKWARD, 10, rank=1),),
        events=(At(30, Signal((0,), SIGSTOP)),),
        checkpoint_every=20,
    )
    carry_out(plan)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_schedules(carry_out: Callable[[Plan], RingJob], seed: int) -> None:
    carry_out(random_plan(seed))

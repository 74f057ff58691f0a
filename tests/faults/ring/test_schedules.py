"""Rings are hurt in every way; every record is counted exactly once in every epoch all the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM

import pytest

from tests.faults.ring.job import PlannedJob
from tests.faults.ring.network import Network
from tests.faults.ring.plan import (
    ALL,
    At,
    Cut,
    Grown,
    Inside,
    KillMaster,
    KillWorkers,
    Phase,
    Plan,
    Signal,
    random_plan,
)

# Of one schedule. Most take a twentieth of it on two quiet cores. One takes ten seconds more in
# which a worker fails soon after the master: it has this time to find the new master.
LIMIT_S = 300.0

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.fixture
def carry_out(tmp_path: Path) -> Callable[[Plan], PlannedJob]:
    """Runs a plan to its end, with all checks."""

    def run(plan: Plan) -> PlannedJob:
        why_not = Network.why_not() if plan.machines == 2 else ""
        if why_not:
            pytest.skip(why_not)
        started = time.monotonic()
        job = PlannedJob(tmp_path, plan)
        try:
            job.carry_out()
            job.check(max(10.0, LIMIT_S - (time.monotonic() - started)))
        finally:
            job.close()
        return job

    return run


@pytest.mark.slow
def test_a_kill_in_the_step_and_a_stop(carry_out: Callable[[Plan], PlannedJob]) -> None:
    """One dies while gradients travel; rank 0 stops, and the master declares it lost."""
    plan = Plan(
        deaths=(Inside(Phase.BACKWARD, 10, rank=1),),
        events=(At(30, Signal((0,), SIGSTOP)),),
        checkpoint_every=20,
    )
    carry_out(plan)


@pytest.mark.slow
def test_master_and_worker_are_killed_at_once_and_one_joins(
    carry_out: Callable[[Plan], PlannedJob],
) -> None:
    """The survivor continues with the new master; the newcomer takes its state."""
    plan = Plan(workers=2, events=(At(10, KillMaster((0,))), At(11, Grown(2))), records=240)
    carry_out(plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    "phases",
    [
        (Phase.START, Phase.REGISTERED, Phase.REHEARSAL, Phase.TAKING, Phase.GIVING),
        (Phase.FORWARD, Phase.BACKWARD, Phase.REDUCED, Phase.OPTIMIZER, Phase.STEPPED),
    ],
    ids=["joining", "in steps"],
)
def test_workers_are_asked_to_leave_in_each_phase(
    carry_out: Callable[[Plan], PlannedJob], phases: tuple[Phase, ...]
) -> None:
    """Before they join, while they recover, in a step: each leaves, and another one comes."""
    deaths = tuple(Inside(phase, 5 + 5 * n, None, SIGTERM) for n, phase in enumerate(phases))
    leaves = At(3, Signal((0,), SIGTERM))  # so that somebody joins
    events = (At(2, Grown(2)), leaves, At(15, Grown(2)), At(30, Grown(2)))
    carry_out(Plan(workers=2, events=events, deaths=deaths, checkpoint_every=5, epochs=3))


@pytest.mark.slow
def test_all_die_before_there_is_a_checkpoint(carry_out: Callable[[Plan], PlannedJob]) -> None:
    """The job begins anew, and counts nothing of its first life."""
    carry_out(Plan(workers=2, events=(At(10, Signal(ALL, SIGKILL)),), records=240, epochs=3))


@pytest.mark.slow
def test_all_die_after_a_checkpoint(carry_out: Callable[[Plan], PlannedJob]) -> None:
    """The job goes back to it, and not to the beginning."""
    plan = Plan(workers=2, events=(At(50, Signal(ALL, SIGKILL)),), checkpoint_every=10)
    job = carry_out(plan)
    lives = {step for seats in job.rings().values() for _, _, _, step in seats}
    assert lives & {30, 40, 50}, f"rings began at steps {lives}"


@pytest.mark.slow
def test_rank_0_is_cut_off_from_the_master(carry_out: Callable[[Plan], PlannedJob]) -> None:
    """It writes no checkpoint meanwhile, and another one does."""
    plan = Plan(
        workers=2,
        machines=2,
        events=(At(5, Grown(4)), At(6, KillWorkers()), At(7, Grown(4)), At(20, Cut(6.0))),
        checkpoint_every=1,
        epochs=8,
    )
    carry_out(plan)


@pytest.mark.slow
def test_the_whole_ring_is_cut_off_from_the_master(carry_out: Callable[[Plan], PlannedJob]) -> None:
    """Its members stop by themselves, before newcomers on the master's side begin."""
    plan = Plan(
        workers=2,
        machines=2,
        events=(At(5, Grown(4)), At(20, KillWorkers()), At(21, Grown(2)), At(22, Cut(8.0))),
        checkpoint_every=1,
    )
    job = carry_out(plan)
    assert any("heard of the master" in f.read_text() for f in job.told.glob("log-*"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_schedules(carry_out: Callable[[Plan], PlannedJob], seed: int) -> None:
    carry_out(random_plan(seed))

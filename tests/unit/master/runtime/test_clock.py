"""The clock of the job stands still while the master does not run."""

from __future__ import annotations

from master.runtime.clock import Clock, Throttle, of_notes, of_ticks
from tests.unit.master.world import World
from torch_edl.events import JobFinished


class Machine:
    """Its clock goes on, whatever runs on it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_pause_does_not_count() -> None:
    machine = Machine()
    clock = Clock(machine)
    for _ in range(10):
        machine.now += 0.5
        clock()
    assert clock() == 1005.0
    assert clock.take_pause() == 0.0
    machine.now += 40.0
    assert clock() == 1005.0
    machine.now += 0.5
    assert clock() == 1005.5
    assert clock.take_pause() == 40.0
    assert clock.take_pause() == 0.0, "it is told once"


def test_nobody_is_lost_because_the_master_was_paused() -> None:
    machine = Machine()
    clock = Clock(machine)
    w = World(kind="script", strategy="allreduce", now=clock())
    job = w.job
    w.register(7)
    machine.now += 40.0
    job.tick(clock())
    assert 0 in job.members
    job.lifecycle.paused(clock.take_pause())
    job.lifecycle.note(JobFinished(), clock())
    assert job.lifecycle.log.after(0)[-1].time == 1040.0, "events have the time of day"
    for _ in range(20):
        machine.now += 0.6
        job.tick(clock())
    assert 0 not in job.members, "its own silence counts"


def test_it_takes_a_share_of_the_time_at_most() -> None:
    pace = Throttle(every_s=1.0, times=9, longest_s=10.0)
    assert pace.until_due(100.0) == 0.0
    for took, at, due in ((0.001, 100.0, 101.0), (0.5, 101.0, 105.5), (60.0, 200.0, 210.0)):
        pace.took(took, at)
        assert pace.until_due(due - 0.25) == 0.25
        assert pace.until_due(due) == 0.0


def test_the_pace_of_a_small_job_is_that_of_its_calls() -> None:
    ticks, notes = of_ticks(), of_notes()
    ticks.took(0.0002, 5.0)
    assert ticks.until_due(5.0) < 0.001
    notes.took(0.002, 5.0)
    assert notes.until_due(6.0) == 0.0

"""Which processes a job has: those that ended are remembered for a while, and cost nothing."""

from master.state.workforce.processes import (
    EXITED,
    Roster,
    ServerProcess,
    SpareProcess,
    WorkerProcess,
)


def test_processes_by_kind() -> None:
    roster = Roster()
    for process in (WorkerProcess(0), SpareProcess(1), ServerProcess(0)):
        roster.add(process)
    assert [p.name for p in roster.alive("worker")] == ["worker-0"]
    assert [p.name for p in roster.alive("spare")] == ["spare-1"]
    assert [p.name for p in roster.alive("ps")] == ["ps-0"]
    assert len(roster.alive()) == 3
    roster["worker", 0].enter(EXITED)
    roster.put(roster["worker", 1].take_slot(1.0))
    assert [p.name for p in roster.alive("worker")] == ["worker-1"]
    assert roster.get("worker", 0) is not None
    assert roster.get("worker", 7) is None


def test_of_those_that_ended_the_last_ones_are_remembered() -> None:
    roster = Roster()
    for id in range(20_000):
        roster.add(WorkerProcess(id))
        if id >= 10:
            roster["worker", id - 10].enter(EXITED)
    assert [p.id for p in roster.alive("worker")] == list(range(19_990, 20_000))
    assert 1_010 <= len(list(roster)) < 4_000
    assert roster.get("worker", 5) is None
    assert roster.get("worker", 19_500) is not None


def test_all_that_run_stay_however_many_there_are() -> None:
    roster = Roster()
    for id in range(5_000):
        roster.add(WorkerProcess(id))
    assert len(roster.alive("worker")) == len(list(roster)) == 5_000

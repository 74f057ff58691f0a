"""What happens when, and to whom: no process, no clock."""

from __future__ import annotations

import math
import signal

from torch_edl.plugins.chaos.plan import Fault, StormPlan
from torch_edl.plugins.chaos.storm import Blow, Storm, Target, strikes

WORKERS = [Target("worker", n, 100 + n) for n in range(3)]
SERVERS = [Target("ps", n, 200 + n) for n in range(2)]
ALL = [*WORKERS, *SERVERS]


def plan(*faults: Fault, for_s: float = 60.0, seed: int = 0) -> StormPlan:
    return StormPlan(faults=faults, for_s=for_s, seed=seed)


def run(storm: Storm, living: list[Target]) -> list[tuple[float, Blow]]:
    """All blows with their times; a process that is killed is replaced at once."""
    found, living = [], list(living)
    while not storm.over:
        now = storm.next_s()
        for blow in storm.due(now, living):
            found.append((now, blow))
            if blow.number in (signal.SIGKILL, signal.SIGTERM):
                living.remove(blow.target)
                ids = [t.id for t in living if t.role == blow.target.role]
                living.append(Target(blow.target.role, max(ids) + 10, 1000 + len(found)))
    return found


def test_each_round_has_its_faults_at_other_moments() -> None:
    many = plan(Fault(role="worker", count=2, every_s=3.0), Fault(role="ps", every_s=3.0))
    found = strikes(many)
    assert len(found) == 60
    assert [s.at_s for s in found] == sorted(s.at_s for s in found)
    for round in range(20):
        inside = [s.role for s in found if 3 * round <= s.at_s < 3 * round + 3]
        assert sorted(inside) == ["ps", "worker", "worker"]
    assert len({s.at_s for s in found}) == 60


def test_a_seed_is_a_storm() -> None:
    def storm(seed: int) -> list[tuple[float, Blow]]:
        return run(Storm(plan(Fault(role="worker", every_s=1.0), seed=seed)), ALL)

    assert storm(3) == storm(3)
    assert storm(3) != storm(4)
    assert {blow.target.role for _, blow in storm(3)} == {"worker"}


def test_what_happens_at_once_hits_different_processes() -> None:
    storm = Storm(plan(Fault(role="worker", count=3, at_s=5.0), Fault(role="ps", at_s=5.0)))
    assert storm.next_s() == 5.0
    assert storm.due(4.9, ALL) == []
    blows = storm.due(5.0, ALL)
    assert {b.target for b in blows if b.target.role == "worker"} == set(WORKERS)
    assert len(blows) == 4
    assert storm.over
    assert storm.next_s() == math.inf


def test_a_paused_process_continues() -> None:
    storm = Storm(plan(Fault(role="ps", pause_s=2.0, at_s=1.0)))
    (blow,) = storm.due(1.5, SERVERS[:1])
    assert blow == Blow(SERVERS[0], signal.SIGSTOP, 2.0)
    assert not storm.over
    assert storm.next_s() == 3.5
    assert storm.due(3.5, []) == [Blow(SERVERS[0], signal.SIGCONT)]
    assert storm.over


def test_stopping_continues_what_is_paused_and_forgets_the_rest() -> None:
    storm = Storm(plan(Fault(role="ps", pause_s=9.0, at_s=1.0), Fault(role="worker", at_s=2.0)))
    storm.due(1.0, ALL)
    assert [blow.number for blow in storm.stop()] == [signal.SIGCONT]
    assert storm.over
    assert storm.stop() == []


def test_a_killed_process_is_not_struck_again_while_it_is_still_listed() -> None:
    storm = Storm(plan(Fault(role="master", at_s=1.0), Fault(role="master", at_s=2.0)))
    master = [Target("master", 0, 7)]
    assert len(storm.due(1.0, master)) == 1
    assert storm.due(2.0, master) == []
    assert not storm.over
    assert len(storm.due(3.0, [Target("master", 0, 8)])) == 1


def test_a_fault_without_a_process_waits_and_is_missed() -> None:
    storm = Storm(plan(Fault(role="worker", at_s=1.0)))
    assert storm.due(10.9, []) == []
    assert not storm.over
    assert storm.due(11.0, []) == []
    assert (storm.over, storm.missed) == (True, 1)


class TestServersThatNeedEachOther:
    """The state of a server is on its peer until another peer has it."""

    faults = plan(Fault(role="ps", count=2, at_s=1.0))

    def test_the_second_waits_until_it_may_be_lost(self) -> None:
        storm = Storm(self.faults)
        (blow,) = storm.due(1.0, SERVERS, SERVERS)
        assert storm.due(1.1, SERVERS, SERVERS) == [], "the first is not gone yet"
        (left,) = (t for t in SERVERS if t != blow.target)
        living = [left, Target("ps", 2, 300)]
        assert storm.due(1.5, living, []) == []
        assert [b.target for b in storm.due(2.0, living, [left])] == [left]

    def test_none_is_struck_while_one_is_paused(self) -> None:
        storm = Storm(plan(Fault(role="ps", pause_s=5.0, at_s=0.5), *self.faults.faults))
        assert [b.number for b in storm.due(0.5, SERVERS, SERVERS)] == [signal.SIGSTOP]
        assert storm.due(1.0, SERVERS, SERVERS) == []

    def test_workers_are_struck_meanwhile(self) -> None:
        storm = Storm(plan(Fault(role="worker", at_s=1.0)))
        assert len(storm.due(1.0, ALL, [])) == 1

    def test_others_die_together(self) -> None:
        assert len(Storm(self.faults).due(1.0, SERVERS)) == 2

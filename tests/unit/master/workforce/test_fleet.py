"""Which processes run."""

from __future__ import annotations

import json
from dataclasses import fields
from types import NoneType
from typing import Any

import pytest

from master.state.workforce.processes import (
    EXITED,
    RUNNING,
    STOPPING,
    OfAll,
    Roster,
    ServerProcess,
    Spare,
    WorkerProcess,
    restored,
    without_defaults,
)
from master.state.workforce.servers import ModelStart, ServerCommand
from master.state.workforce.workforce import Finished
from tests.unit.master.world import World, running
from torch_edl.config import ClusterConfig, DurabilityConfig, JobConfig
from torch_edl.config.job import check_workers
from torch_edl.errors import UsageError


def test_a_server_knows_its_shard_its_journal_and_its_model() -> None:
    command = ServerCommand(job="job", args=["--mode", "sync"], journals="/j")
    assert " ".join(command.words(1, 2, 4, model=ModelStart(2, "/ck/step-1", True))) == (
        "--job job --shard 1 --shards 2 --incarnation 4 --mode sync "
        "--journal /j/model-2/shard-1-of-2 --model-incarnation 2 --restore /ck/step-1 --values-only"
    )


@pytest.mark.parametrize(
    ("kind", "host", "durability", "args", "journals"),
    [
        ("train", "0.0.0.0", {}, "", ""),
        ("script", "0.0.0.0", {}, "--host 0.0.0.0", ""),
        ("script", "", {"mode": "replica"}, "--replica", ""),
        ("train", "", {"mode": "journal"}, "--fsync interval", "/j"),
        ("train", "", {"mode": "journal", "fsync": "always", "repair": True},
         "--fsync always --repair", "/j"),
    ],
)  # fmt: skip
def test_the_command_of_all_servers_follows_from_the_configuration(
    kind, host, durability, args, journals
):
    config = JobConfig(
        name="job",
        kind=kind,
        model_file="/m.py",
        cluster=ClusterConfig(servers=2),
        durability=DurabilityConfig(**durability),
    )
    command = ServerCommand.of(config, module="m", host=host, journals="/j")
    common = "--mode async --staleness 0 --grads-to-wait 1"
    assert " ".join(command.args) == f"{common} {args}".strip()
    assert command.journals == journals


def test_the_peer_of_a_shard_is_the_server_of_the_next() -> None:
    w = running(servers=3)
    peers = [w.fleet.servers.peer(shard).address for shard in range(3)]
    assert peers == ["s1", "s2", "s0"]
    w.exit("ps", 0, signal=9)
    assert w.fleet.servers.peer(0) is None
    assert running(servers=1).fleet.servers.peer(0) is None


def test_what_is_said_of_an_end_without_an_exit_code() -> None:
    """Only who started a process learns its exit code, and a master may be another one."""
    w, why = running(workers=3), "the master that started it is gone"
    w.fleet.trained(0)
    w.beat(1, leaving=True)
    w.fleet.process("worker", 2).enter(STOPPING)
    for id in range(3):
        w.exit("worker", id, why=why)
    exits = [w.fleet.process("worker", id).exit for id in range(3)]
    assert exits == [f"exit code not known: {why}", "left when asked", "stopped"]
    assert w.said(f"worker-0 ended, exit code not known: {why}")


def test_a_process_that_was_ended_by_force_was_stopped() -> None:
    """A server whose model moves on; who reads the status looks for no crash."""
    w = running(workers=2)
    w.fleet.process("worker", 0).end()
    w.tick()
    w.kill(1)
    assert [(stop.id, stop.grace_s) for stop in w.stopped] == [(0, 0.0)]
    assert [w.fleet.process("worker", id).exit for id in (0, 1)] == ["stopped", "signal 9"]


class TestDeaths:
    def last(self, w: World, role: str = "worker") -> int:
        return max(process.id for process in w.fleet.alive(role))

    def die(self, w: World, role: str, how: dict[str, int], times: int) -> None:
        """End a process and its replacements one after the other."""
        for _ in range(times):
            assert w.outcome is None
            w.exit(role, self.last(w, role), **how)
            w.tick()

    def test_a_worker_that_trained_may_die_for_ever(self) -> None:
        w = running(workers=2)
        for _ in range(50):
            w.fleet.trained(id := self.last(w))
            w.exit("worker", id, code=1)
            assert len(w.begun()) == 1
        assert w.outcome is None

    def test_a_crash_loop_ends_naming_exit_and_log(self) -> None:
        w, pauses = running(), []
        w.fleet.starts.env["A"] = "b"
        for _ in range(4):
            w.exit("worker", self.last(w), code=3)
            begin = w.now
            while not w.begun():
                w.now += 0.1
            pauses.append(w.now - begin)
        assert w.started[-1].env == {"A": "b"}
        # The first replacement comes at once, each later one after twice the wait.
        assert pauses == pytest.approx([0, 0.5, 1, 2], abs=0.2)
        w.exit("worker", id := self.last(w), code=3)
        assert all(x in w.outcome.error for x in ("exit code 3", f"/worker-{id}.log"))

    def test_progress_of_anybody_ends_the_count(self) -> None:
        w = running(workers=2)
        for round in range(20):
            w.exit("worker", self.last(w), code=1)
            w.pass_time(2)
            assert w.outcome is None, round
            if round % 3 == 2:
                w.fleet.trained(0)

    @pytest.mark.parametrize("role", ["ps", "worker"])
    @pytest.mark.parametrize("how", [{"signal": 15}, {"code": 143}])
    def test_sigterm_never_fails_a_job(self, role: str, how: dict[str, int]) -> None:
        w = running()
        self.die(w, role, how, 100)
        assert w.outcome is None
        assert w.said("as asked") == 100 * (role == "worker")

    @pytest.mark.parametrize("role", ["ps", "worker"])
    @pytest.mark.parametrize("how", [{"signal": 9}, {"code": 137}])
    def test_sigkill_fails_a_job_only_where_nothing_was_ever_trained(
        self, role: str, how: dict[str, int]
    ) -> None:
        w = running()
        self.die(w, role, how, 30)
        assert "memory" in w.outcome.error
        w = running()
        w.fleet.trained(0)
        for each in (w.restart(), w):
            self.die(each, role, how, 100)
            assert each.outcome is None


class TestScale:
    def test_a_worker_that_leaves_while_another_is_retired_is_replaced_when_both_are_gone(self):
        w = running(workers=3)
        w.beat(1, leaving=True)  # somebody else asked it to
        w.scale(1)
        assert w.begun() == []
        assert w.fleet.draining() == [1, 2]
        w.beat(0, leaving=True)
        assert w.begun() == []
        for id in (2, 1):
            w.exit("worker", id, code=0)
            assert w.begun() == []
        w.exit("worker", 0, code=0)
        assert w.begun() == ["worker-3"]

    def test_a_worker_that_does_not_drain_is_stopped(self) -> None:
        w = running(workers=2)
        w.fleet.trained(1)
        w.scale(1)
        w.tick()
        w.pass_time(59.5)
        assert w.stopped == []
        w.pass_time(1)
        assert [stop.id for stop in w.stopped] == [1]

    @pytest.mark.parametrize(
        ("least", "most", "strategy", "fix"),
        [
            (0, 0, "ps", "at least"),
            (4, 2, "ps", "write 2:4"),
            (1, 2, "local", "--strategy allreduce"),
        ],
    )
    def test_a_number_that_cannot_be(self, least, most, strategy, fix):
        with pytest.raises(UsageError, match=fix):
            check_workers(least, most, strategy=strategy)


def test_at_the_end_workers_leave_first() -> None:
    w = running(workers=2, servers=1)
    assert w.start(0), "the other one has no model yet, and would not hear for long"
    w.apply(Finished(leave_s=10))
    ends = []
    for _ in range(14):
        w.tick(1)
        ends.append([f"{stop.role}-{stop.id}" for stop in w.stopped])
    assert ends[0] == ends[8] == ["worker-1"]
    assert ends[-1] == ["worker-1", "worker-0", "ps-0"]
    # Not as those that somebody else has asked to leave.
    assert {process.exit for process in w.fleet} == {"stopped"}


@pytest.mark.parametrize("kind", [WorkerProcess, Spare, ServerProcess])
def test_each_field_of_a_process_is_in_the_next_note_and_no_earlier_one(kind: Any) -> None:
    process = kind(7)
    other = {str: "x", int: 5, float: 2.5, bool: True, NoneType: 2.5}
    names = [each.name for each in fields(kind) if each.name != "id"]
    for name in names:
        before, usual = process.to_state(), getattr(process, name)
        assert name not in without_defaults(before) or name == "started_at"
        setattr(process, name, value := other[type(usual)])
        after = process.to_state()
        assert (before[name], after[name]) == (usual, value)
        # Only whether a process was heard is kept, so that the stored state changes rarely.
        assert without_defaults(after)[name] == (0.0 if name == "heard_at" else value)
        again = restored(json.loads(json.dumps(without_defaults(after))), 2.5, 2.5)
        assert (type(again), getattr(again, name)) == (kind, value)
        setattr(process, name, usual)


# ---- the roster ----


def test_processes_by_kind() -> None:
    roster = Roster()
    for process in (WorkerProcess(0), Spare(1), ServerProcess(0)):
        roster.add(process)
    assert [p.name for p in roster.alive("worker")] == ["worker-0"]
    assert [p.name for p in roster.alive("spare")] == ["spare-1"]
    assert [p.name for p in roster.alive("ps")] == ["ps-0"]
    assert len(roster.alive()) == 3
    roster["worker", 0].enter(EXITED)
    roster.put(roster["worker", 1].as_worker(1.0))
    assert [p.name for p in roster.alive("worker")] == ["worker-1"]
    assert roster.process("worker", 0) is not None
    assert roster.process("worker", 7) is None


def test_what_is_found_in_processes_follows_each_change() -> None:
    roster = Roster()
    for id in range(3):
        roster.add(WorkerProcess(id))
    found = OfAll(roster, lambda: [p.id for p in roster.alive("worker") if p.state == RUNNING])
    assert found() == []
    for process in roster.alive("worker"):
        process.enter(RUNNING)
    assert (before := found()) == [0, 1, 2]
    roster["worker", 1].trained = True  # no query depends on that
    assert found() is before
    roster["worker", 1].enter(EXITED)
    assert found() == [0, 2]


def test_of_those_that_ended_the_last_ones_are_remembered() -> None:
    roster = Roster()
    for id in range(20_000):
        roster.add(WorkerProcess(id))
        if id >= 10:
            roster["worker", id - 10].enter(EXITED)
    assert [p.id for p in roster.alive("worker")] == list(range(19_990, 20_000))
    assert 1_010 <= len(list(roster)) < 4_000
    assert roster.process("worker", 5) is None
    assert roster.process("worker", 19_500) is not None


def test_all_that_run_stay_however_many_there_are() -> None:
    roster = Roster()
    for id in range(5_000):
        roster.add(WorkerProcess(id))
    assert len(roster.alive("worker")) == len(list(roster)) == 5_000

"""Which processes run."""

from __future__ import annotations

import json
from dataclasses import fields
from types import NoneType

import pytest

from master.state.actions import Failure, Stop
from master.state.workforce.deaths import Gone
from master.state.workforce.processes import (
    EXITED,
    RUNNING,
    STOPPING,
    AgentProcess,
    OfAll,
    Roster,
    ServerProcess,
    SpareProcess,
    WorkerProcess,
    restored,
    without_defaults,
)
from master.state.workforce.servers import ServerCommand
from tests.unit.master.workforce.fleets import Processes, running
from torch_edl.config import ClusterConfig, DurabilityConfig, JobConfig
from torch_edl.config.job import check_workers
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


def test_workers_at_once_and_servers_when_the_strategy_is_known():
    f = Processes(workers=3)
    assert f.did(0.0) == ["start worker-0", "start worker-1", "start worker-2"]
    assert f.plan(1.0) == []
    assert f.cluster() is None
    f.decide("ps", restore="")
    assert f.did(2.0) == ["start ps-0", "start ps-1"]
    local = Processes(workers=0)
    local.decide("local", restore="")
    assert local.plan(0.0) == []
    assert local.cluster() == pb.Cluster(incarnation=1)


def test_servers_know_what_they_are_and_the_journal_of_their_shard():
    f = Processes(workers=0)
    f.server_command = ServerCommand(job="job", args=["--mode", "sync"], journals="/j")
    f.starts.env.update({"A": "b"})
    f.decide("ps", restore="/ck/step-1")
    for model, incarnation in ((1, 2), (2, 4)):
        spec = f.plan(0.0)[-1].spec
        assert " ".join(spec.args) == (
            f"--job job --shard 1 --shards 2 --incarnation {incarnation} --mode sync "
            f"--journal /j/model-{model}/shard-1-of-2 --model-incarnation {model} "
            "--restore /ck/step-1"
        )
        assert (spec.module, spec.env) == ("torch_edl.ps_server", {"A": "b"})
        f.renew(restore="/ck/step-1")


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


def test_the_cluster_is_there_once_all_registered_in_shard_order():
    f = Processes(strategy="ps")
    f.plan(0.0)
    assert f.servers.registered(1, 2, "host:b", 0.0)
    assert f.cluster() is None
    told = f.cluster(starting=True).servers
    assert [(s.address, s.incarnation) for s in told] == [("", 1), ("host:b", 2)]
    assert not f.servers.registered(0, 7, "host:x", 0.0)
    assert not f.servers.registered(0, 2, "host:x", 0.0)
    assert f.servers.registered(0, 1, "host:a", 0.0)
    assert [server.address for server in f.servers.now()] == ["host:a", "host:b"]
    assert f.cluster() == f.cluster(starting=True)


def test_the_peer_of_a_shard_is_the_server_of_the_next():
    f = running(servers=3)
    assert [f.servers.peer(shard).address for shard in range(3)] == ["host:1", "host:2", "host:0"]
    f.renew(restore="")
    assert f.servers.peer(0) is None
    assert running(servers=1).servers.peer(0) is None


def test_a_dead_server_renews_all_under_a_higher_incarnation():
    f = running()
    assert f.ends("ps", 0, signal=9) == Gone("ps-0 ended with signal 9")
    f.renew(restore="/ck/step-5")
    stop, start, _ = f.plan(1.0)
    assert (stop, start.spec.name) == (Stop("ps", 1, 0), "ps-2")
    assert "--incarnation 3 --restore /ck/step-5" in " ".join(start.spec.args)
    assert f.cluster() is None
    assert f.ends("ps", 1, signal=9) is None
    assert f.servers.heard(1, 2, 1.1) is None
    for shard in (0, 1):
        assert not f.servers.registered(shard, shard + 1, "old", 1.1)
        assert f.servers.is_superseded(shard, shard + 1)
        assert not f.servers.is_superseded(shard, shard + 3)
        assert f.servers.registered(shard, shard + 3, f"new:{shard}", 1.2)
    assert [server.address for server in f.servers.now()] == ["new:0", "new:1"]
    assert f.model.incarnation == 2


def test_what_is_said_of_an_end_without_an_exit_code():
    """Only who started a process learns its exit code, and a master may be another one."""
    f, why = running(workers=3), "the master that started it is gone"
    f.trained(0)
    assert f.ends("worker", 0, why=why) == Gone(f"worker-0 ended, exit code not known: {why}")
    f.leaves(1, 1.0, by=9.0)
    f.process("worker", 2).enter(STOPPING)
    for id in (1, 2):
        f.ends("worker", id, why=why)
    exits = [f.process("worker", id).exit for id in range(3)]
    assert exits == [f"exit code not known: {why}", "left when asked", "stopped"]


def test_a_process_that_was_ended_by_force_was_stopped() -> None:
    """A server whose model moves on; who reads the status looks for no crash."""
    f = running()
    f.process("worker", 0).end()
    assert f.plan(1.0) == [Stop("worker", 0, 0.0)]
    for id in (0, 1):
        f.ends("worker", id, signal=9)
    assert [f.process("worker", id).exit for id in (0, 1)] == ["stopped", "signal 9"]


class TestDeaths:
    def killed(self, f: Processes, role: str, how: dict[str, int], times: int) -> list[object]:
        """Return what the ends of a process and of its replacements mean."""
        ends = []
        for now in range(times):
            process = f.alive(role)[-1]
            ends.append(f.ends(role, process.id, float(now), **how))
            if role == "ps":
                f.renew(restore="")
            f.plan(float(now))
        return ends

    def test_a_worker_that_trained_may_die_for_ever(self):
        f = running()
        for round in range(50):
            id = max(p.id for p in f.alive("worker"))
            f.trained(id)
            assert isinstance(f.ends("worker", id, float(round), code=1), Gone)
            assert len(f.plan(float(round))) == 1

    def test_a_crash_loop_ends_naming_exit_and_log(self):
        f = running(workers=1)
        now, waits = 0.0, []
        for _ in range(4):
            id = f.alive("worker")[0].id
            f.registered(id)
            assert isinstance(f.ends("worker", id, now, code=3), Gone)
            begin = now
            while not f.plan(now):
                now += 0.1
            waits.append(now - begin)
        # The first replacement comes at once, each later one after twice the wait.
        assert waits == pytest.approx([0, 0.5, 1, 2], abs=0.2)
        failure = f.ends("worker", f.alive("worker")[0].id, now, code=3)
        assert isinstance(failure, Failure)
        assert "exit code 3" in failure.error
        assert "/logs/x" in failure.error

    def test_progress_of_anybody_ends_the_count(self):
        f = running()
        for round in range(20):
            id = max(p.id for p in f.alive("worker"))
            assert isinstance(f.ends("worker", id, 100.0 * round, code=1), Gone), round
            f.plan(100.0 * round + 50)
            if round % 3 == 2:
                f.trained(0)

    @pytest.mark.parametrize("role", ["ps", "worker"])
    @pytest.mark.parametrize("how", [{"signal": 15}, {"code": 143}])
    def test_sigterm_never_fails_a_job(self, role, how):
        ends = self.killed(running(workers=1), role, how, 100)
        assert all(isinstance(end, Gone) and end.expected == (role == "worker") for end in ends)

    @pytest.mark.parametrize("role", ["ps", "worker"])
    @pytest.mark.parametrize("how", [{"signal": 9}, {"code": 137}])
    def test_sigkill_fails_a_job_only_where_nothing_was_ever_trained(self, role, how):
        *ends, last = self.killed(running(workers=1), role, how, 30)
        assert all(isinstance(end, Gone) for end in ends)
        assert isinstance(last, Failure)
        assert "memory" in last.error
        f = running(workers=1)
        f.trained(0)
        again = Processes(workers=1)
        again.from_state(f.to_state(), 0.0)
        for each in (f, again):
            each.plan(0.0)
            assert all(isinstance(end, Gone) for end in self.killed(each, role, how, 100))


class TestScale:
    def test_a_worker_that_leaves_while_another_is_retired_is_replaced_when_both_are_gone(self):
        f = running(workers=3)
        f.leaves(1, 0.0, by=100.0)  # somebody else asked it to
        f.workers_wanted = 1
        assert f.plan(0.0) == []
        assert f.draining() == [1, 2]
        f.leaves(0, 1.0, by=100.0)
        assert f.plan(1.0) == []
        for id in (2, 1):
            f.ends("worker", id, 2.0, code=0)
            assert f.plan(2.0) == []
        f.ends("worker", 0, 3.0, code=0)
        assert f.did(3.0) == ["start worker-3"]

    def test_a_worker_that_does_not_drain_is_stopped(self):
        f = running()
        f.trained(1)
        f.workers_wanted = 1
        f.plan(0.0)
        assert [f.did(now) for now in (59.0, 60.0, 61.0)] == [[], ["stop worker-1"], []]

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


def test_at_the_end_workers_leave_first():
    f = running(workers=2, servers=1)
    f.ready(0)
    f.end(0.0, leave_s=10)
    # worker-1 has no model yet and would not hear for long.
    assert f.plan(0.0) == [Stop("worker", 1, 2.0)]
    assert f.plan(5.0) == []
    assert f.ends("worker", 1, 5.0, signal=15).expected
    assert f.did(10.0) == ["stop worker-0"]
    f.ends("worker", 0, 10.5, code=0)
    assert f.did(10.5) == ["stop ps-0"]
    assert f.ends("ps", 0, 10.6, code=143) is None
    assert (f.alive(), f.plan(11.0)) == ([], [])
    # Not as those that somebody else has asked to leave.
    exits = {p.name: p.exit for p in f}
    assert exits == {"worker-0": "exit code 0", "worker-1": "stopped", "ps-0": "stopped"}


def test_what_is_found_in_processes_follows_each_change() -> None:
    f = Processes(workers=3, servers=0)
    found = OfAll(f, lambda: [p.id for p in f.alive("worker") if p.state == RUNNING])
    f.plan(0.0)
    assert found() == []
    for process in f.alive("worker"):
        process.enter(RUNNING)
    assert (before := found()) == [0, 1, 2]
    f.alive("worker")[1].trained = True  # no query depends on that
    assert found() is before
    f.alive("worker")[1].enter(EXITED)
    assert found() == [0, 2]


@pytest.mark.parametrize("kind", [WorkerProcess, SpareProcess, AgentProcess, ServerProcess])
def test_each_field_of_a_process_is_in_the_next_note_and_no_earlier_one(kind):
    f, process = Processes(), kind(7)
    f.add(process)
    other = {str: "x", int: 5, float: 2.5, bool: True, NoneType: 2.5}
    names = [each.name for each in fields(kind) if each.name != "id"]
    for name in names:
        (before,), usual = f.to_state()["processes"], getattr(process, name)
        assert name not in without_defaults(before) or name == "started_at"
        setattr(process, name, value := other[type(usual)])
        (after,) = f.to_state()["processes"]
        assert (before[name], after[name]) == (usual, value)
        assert without_defaults(after)[name] == value
        again = restored(json.loads(json.dumps(without_defaults(after))), 2.5, 2.5)
        assert (type(again), getattr(again, name)) == (kind, value)
        setattr(process, name, usual)


# ---- the roster ----


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
    assert roster.process("worker", 0) is not None
    assert roster.process("worker", 7) is None


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

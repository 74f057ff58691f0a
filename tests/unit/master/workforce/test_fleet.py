"""Which processes run, in simulated time."""

from __future__ import annotations

import pytest

from master.state.actions import Failure, Start, Stop
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import STOPPING, Gone
from master.state.workforce.server_command import ServerCommand
from torch_edl.config.scaling import check_workers
from torch_edl.errors import UsageError
from torch_edl.processes.spec import ProcessExit
from torch_edl.wire import master_pb2 as pb


def fleet(workers: int = 2, servers: int = 2) -> Fleet:
    return Fleet(ServerCommand(job="job"), workers=workers, servers=servers)


def names(actions) -> list[str]:
    return [
        f"start {a.spec.name}" if isinstance(a, Start) else f"stop {a.role}-{a.id}" for a in actions
    ]


def exit(role: str, id: int, *, code: int | None = 1, signal: int | None = None) -> ProcessExit:
    return ProcessExit(role=role, id=id, code=None if signal else code, signal=signal)


def running(workers: int = 2, servers: int = 2) -> Fleet:
    """A fleet of the strategy ps in which everything has registered."""
    f = fleet(workers, servers)
    f.decide("ps", restore="")
    f.plan(0.0)
    for shard in range(servers):
        assert f.servers.registered(shard, shard + 1, f"host:{shard}", 0.0)
    for id in range(workers):
        assert f.registered(id)
    return f


def test_workers_at_once_and_servers_when_the_strategy_is_known():
    f = fleet(workers=3)
    assert names(f.plan(0.0)) == ["start worker-0", "start worker-1", "start worker-2"]
    assert f.plan(1.0) == []
    assert f.cluster() is None
    f.decide("ps", restore="")
    assert names(f.plan(2.0)) == ["start ps-0", "start ps-1"]


def test_servers_know_what_they_are():
    f = Fleet(ServerCommand(job="job", args=["--mode", "sync"]), workers=1, servers=2)
    f.env.update({"A": "b"})
    f.decide("ps", restore="/ck/step-1")
    spec = f.plan(0.0)[1].spec
    assert " ".join(spec.args) == (
        "--job job --shard 1 --shards 2 --incarnation 2 --mode sync --restore /ck/step-1"
    )
    assert (spec.module, spec.env) == ("torch_edl.ps_server", {"A": "b"})


def test_servers_know_the_journal_of_their_shard():
    f = Fleet(ServerCommand(job="job", journals="/jobs/j/journal"), workers=0, servers=2)
    f.decide("ps", restore="")
    text = "--journal /jobs/j/journal/model-{0}/shard-1-of-2 --model-incarnation {0}"
    assert text.format(1) in " ".join(f.plan(0.0)[1].spec.args)
    f.renew(restore="")
    assert text.format(2) in " ".join(f.plan(0.0)[-1].spec.args)


def test_local_has_no_servers():
    f = fleet(workers=1)
    f.plan(0.0)
    f.decide("local", restore="")
    assert f.plan(0.0) == []
    assert f.cluster() == pb.Cluster(incarnation=1)


def addresses(f: Fleet) -> list[str]:
    return [server.address for server in f.servers.now()]


def test_the_cluster_is_there_once_all_registered_in_shard_order():
    f = fleet()
    f.decide("ps", restore="")
    f.plan(0.0)
    assert f.servers.registered(1, 2, "host:b", 0.0)
    assert f.cluster() is None
    assert [(s.address, s.incarnation) for s in f.cluster(starting=True).servers] == [
        ("", 1),
        ("host:b", 2),
    ]
    assert not f.servers.registered(0, 7, "host:x", 0.0)
    assert not f.servers.registered(0, 2, "host:x", 0.0)
    assert f.servers.registered(0, 1, "host:a", 0.0)
    assert addresses(f) == ["host:a", "host:b"]
    assert f.cluster() == f.cluster(starting=True)


def test_the_peer_of_a_shard_is_the_server_of_the_next():
    f = running(servers=3)
    assert [f.servers.peer(shard).address for shard in range(3)] == ["host:1", "host:2", "host:0"]
    f.renew(restore="")
    assert f.servers.peer(0) is None
    assert running(servers=1).servers.peer(0) is None


def test_a_dead_worker_is_replaced_under_a_new_id():
    f = running()
    f.trained(1)
    gone = f.exited(exit("worker", 1, signal=9), 5.0, log="log")
    assert gone == Gone("worker-1 ended with signal 9", expected=False)
    assert names(f.plan(5.0)) == ["start worker-2"]
    assert not f.registered(1)


def test_what_is_said_of_an_end_without_an_exit_code():
    """Only who started a process learns its exit code, and a master may be another one."""
    f, why = running(workers=3), "the master that started it is gone"
    f.trained(0)

    def end(role: str, id: int) -> str:
        f.exited(ProcessExit(role=role, id=id, why=why), 1.0, log="")
        return f.process(role, id).exit

    assert f.exited(ProcessExit(role="worker", id=0, why=why), 1.0, log="") == Gone(
        "worker-0 ended, exit code not known: the master that started it is gone"
    )
    assert f.process("worker", 0).exit == f"exit code not known: {why}"
    f.leaves(1, 1.0, by=9.0)
    f.process("worker", 2).state = STOPPING
    assert [end("worker", 1), end("worker", 2)] == ["left when asked", "stopped"]


def test_a_process_that_was_ended_by_force_was_stopped() -> None:
    """A server whose model moves on; who reads the status looks for no crash."""
    f = running(workers=2)
    f.process("worker", 0).end()
    assert f.plan(1.0) == [Stop("worker", 0, 0.0)]
    f.exited(exit("worker", 0, signal=9), 1.1, log="log")
    f.exited(exit("worker", 1, signal=9), 1.1, log="log")
    assert [f.process("worker", id).exit for id in (0, 1)] == ["stopped", "signal 9"]


def test_workers_that_trained_may_die_for_ever():
    f = running()
    for round in range(50):
        id = max(p.id for p in f.alive("worker"))
        f.trained(id)
        assert isinstance(f.exited(exit("worker", id, signal=9), float(round), log=""), Gone)
        assert len(f.plan(float(round))) == 1


def test_a_crash_loop_ends_naming_exit_and_log():
    f = running(workers=1)
    now = 0.0
    for count in range(5):
        id = f.alive("worker")[0].id
        f.registered(id)
        gone = f.exited(exit("worker", id, code=3), now, log="/logs/x.log")
        if count < 4:
            assert isinstance(gone, Gone)
            begin = now
            while not f.plan(now):
                now += 0.1
            # The first replacement comes at once, each later one after twice the wait.
            assert now - begin == pytest.approx(
                0 if count == 0 else 0.5 * 2 ** (count - 1), abs=0.2
            )
    assert isinstance(gone, Failure)
    assert "exit code 3" in gone.error
    assert "/logs/x.log" in gone.error


def test_progress_of_anybody_ends_the_count():
    f = running(workers=2)
    for round in range(20):
        id = max(p.id for p in f.alive("worker"))
        gone = f.exited(exit("worker", id), 100.0 * round, log="")
        assert isinstance(gone, Gone), round
        f.plan(100.0 * round + 50)
        if round % 3 == 2:
            f.trained(0)


def test_a_dead_server_renews_all_under_a_higher_incarnation():
    f = running()
    assert f.exited(exit("ps", 0, signal=9), 1.0, log="log") == Gone("ps-0 ended with signal 9")
    f.renew(restore="/ck/step-5")
    actions = f.plan(1.0)
    assert names(actions) == ["stop ps-1", "start ps-2", "start ps-3"]
    assert actions[0].grace_s == 0
    assert "--restore /ck/step-5" in " ".join(actions[1].spec.args)
    assert "--incarnation 3" in " ".join(actions[1].spec.args)
    assert f.cluster() is None
    assert f.exited(exit("ps", 1, signal=9), 1.1, log="") is None
    assert f.servers.heard(1, 2, 1.1) is None
    for shard in (0, 1):
        assert not f.servers.registered(shard, shard + 1, "old", 1.1)
        assert f.servers.is_superseded(shard, shard + 1)
        assert not f.servers.is_superseded(shard, shard + 3)
        assert f.servers.registered(shard, shard + 3, f"new:{shard}", 1.2)
    assert addresses(f) == ["new:0", "new:1"]
    assert f.incarnation == 2


def test_servers_that_cannot_live_end_the_job():
    f = running(servers=1)
    for round in range(5):
        gone = f.exited(exit("ps", round), 1.0, log="/logs/ps.log")
        f.renew(restore="")
        f.plan(1.0)
    assert isinstance(gone, Failure)
    assert "/logs/ps.log" in gone.error


def killed(f: Fleet, role: str, how: dict[str, int], times: int) -> list[object]:
    """What the ends of a process and of its replacements mean."""
    ends = []
    for now in range(times):
        process = f.alive(role)[-1]
        ends.append(f.exited(exit(role, process.id, **how), float(now), log="/logs/x"))
        if role == "ps":
            f.renew(restore="")
        f.plan(float(now))
    return ends


@pytest.mark.parametrize("role", ["ps", "worker"])
@pytest.mark.parametrize("how", [{"signal": 15}, {"code": 143}])
def test_sigterm_never_fails_a_job(role, how):
    ends = killed(running(workers=1), role, how, 100)
    assert all(isinstance(end, Gone) and end.expected == (role == "worker") for end in ends)


@pytest.mark.parametrize("role", ["ps", "worker"])
@pytest.mark.parametrize("how", [{"signal": 9}, {"code": 137}])
def test_sigkill_fails_a_job_only_where_nothing_was_ever_trained(role, how):
    ends = killed(running(workers=1), role, how, 30)
    assert all(isinstance(end, Gone) for end in ends[:-1])
    assert isinstance(ends[-1], Failure)
    assert "is there enough memory?" in ends[-1].error
    f = running(workers=1)
    f.trained(0)
    assert all(isinstance(end, Gone) for end in killed(f, role, how, 100))


def test_a_restarted_master_knows_that_the_job_has_trained():
    before, after = running(workers=1), fleet(workers=1)
    before.trained(0)
    after.from_state(before.to_state(), 0.0)
    after.plan(0.0)
    assert all(isinstance(end, Gone) for end in killed(after, "ps", {"signal": 9}, 100))


def test_scaling_down_drains_the_youngest_and_up_starts_more():
    f = running(workers=3)
    f.workers_wanted = 1
    assert f.plan(0.0) == []
    assert f.draining() == [1, 2]
    gone = f.exited(exit("worker", 2, code=0), 1.0, log="")
    assert gone == Gone("worker-2 ended with exit code 0", expected=True)
    assert f.plan(1.0) == []
    f.exited(exit("worker", 1, code=0), 1.0, log="")
    f.workers_wanted = 2
    assert names(f.plan(2.0)) == ["start worker-3"]


def test_a_worker_that_leaves_while_another_is_retired_is_replaced_when_both_are_gone():
    f = running(workers=3)
    f.leaves(1, 0.0, by=100.0)  # somebody else asked it to
    f.workers_wanted = 1
    assert f.plan(0.0) == []
    assert f.draining() == [1, 2]
    f.leaves(0, 1.0, by=100.0)
    assert f.plan(1.0) == []
    for id in (2, 1):
        f.exited(exit("worker", id, code=0), 2.0, log="")
        assert f.plan(2.0) == []
    f.exited(exit("worker", 0, code=0), 3.0, log="")
    assert names(f.plan(3.0)) == ["start worker-3"]


def test_a_worker_that_does_not_drain_is_stopped():
    f = running(workers=2)
    f.trained(1)
    f.workers_wanted = 1
    f.plan(0.0)
    assert f.plan(59.0) == []
    assert names(f.plan(60.0)) == ["stop worker-1"]
    assert f.plan(61.0) == []


def test_a_lost_worker_is_killed_and_replaced_when_it_is_gone():
    f = running(workers=1)
    f.trained(0)
    f.lost(0)
    assert f.plan(0.0) == [Stop("worker", 0, 0.0)]
    assert f.plan(0.0) == []
    assert f.exited(exit("worker", 0, signal=9), 0.1, log="").expected is False
    assert names(f.plan(0.1)) == ["start worker-1"]


def test_a_worker_that_never_registers_is_given_up():
    f = fleet(workers=1)
    f.plan(0.0)
    assert f.plan(179.0) == []
    assert f.plan(181.0) == [Stop("worker", 0, 0.0)]


def test_at_the_end_workers_leave_first():
    f = running(workers=2, servers=1)
    f.ready(0)
    f.end(0.0, leave_s=10)
    # worker-1 has no model yet and would not hear for long.
    assert f.plan(0.0) == [Stop("worker", 1, 2.0)]
    assert f.plan(5.0) == []
    assert f.exited(exit("worker", 1, signal=15), 5.0, log="").expected
    assert names(f.plan(10.0)) == ["stop worker-0"]
    f.exited(exit("worker", 0, code=0), 10.5, log="")
    assert names(f.plan(10.5)) == ["stop ps-0"]
    assert f.exited(exit("ps", 0, code=143), 10.6, log="") is None
    assert f.alive() == []
    assert f.plan(11.0) == []
    # Not as those that somebody else has asked to leave.
    assert {(p.role, p.id): p.exit for p in f} == {
        ("worker", 0): "exit code 0",
        ("worker", 1): "stopped",
        ("ps", 0): "stopped",
    }


def test_a_failure_stops_everything_at_once():
    f = running(workers=1, servers=1)
    f.end(0.0, leave_s=0)
    assert names(f.plan(0.0)) == ["stop ps-0", "stop worker-0"]


@pytest.mark.parametrize(
    ("least", "most", "strategy", "text"),
    [
        (0, 0, "ps", "at least one"),
        (4, 2, "ps", "write 2:4"),
        (1, 2, "local", "--strategy allreduce"),
    ],
)
def test_a_scale_that_cannot_be(least, most, strategy, text):
    with pytest.raises(UsageError, match=text):
        check_workers(least, most, strategy=strategy)

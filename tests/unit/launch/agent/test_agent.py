"""The agent as a process, with workers that are processes, and a master that a test scripts."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.closing_server import ClosingServer
from tests.memory_group import memory_group
from tests.unit.launch.agent.conftest import FORKED, ForkedAgent, ScriptedMaster
from tests.waiting import is_running, wait_for
from torch_edl.launch.agent.workers import grace_s
from torch_edl.wire import master_pb2 as pb

Start = Callable[..., ForkedAgent]


def test_workers_get_the_environment_of_torchrun_and_ours(
    start: Start, master: ScriptedMaster
) -> None:
    agent = start("--nproc-per-node", "2", "--role", "trainer", "--max-restarts", "3")
    workers = agent.workers(2)
    assert sorted(env["RANK"] for env in workers.values()) == ["0", "1"]
    for env in workers.values():
        expected = {
            "LOCAL_RANK": env["RANK"],
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": env["RANK"],
            "ROLE_NAME": "trainer",
            "ROLE_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCH_EDL_MASTER": f"127.0.0.1:{master.port}",
            "TORCH_EDL_TOKEN": "0123456789abcdef" * 2,
        }
        assert {name: env.get(name) for name in expected} == expected
        assert env["TORCH_EDL_NODE"] == master.told[0].node
        assert env["MASTER_PORT"].isdecimal()
    agent.end(0)
    code, out, err = agent.finish()
    assert code == 0
    assert sorted(out.splitlines()) == ["worker 0 begins", "worker 1 begins"]
    assert "is a training script with torch_edl: 2 workers" in err
    assert set(master.ends().values()) == {0}
    assert master.told[-1].done


def test_a_lost_worker_is_replaced_alone_and_told(start: Start, master: ScriptedMaster) -> None:
    agent = start("--nproc-per-node", "2")
    for attempt, number in enumerate([signal.SIGKILL, signal.SIGTERM], 1):
        before = agent.workers(2)
        victim = next(pid for pid, env in before.items() if env["RANK"] == "1")
        os.kill(victim, number)
        wait_for(lambda victim=victim: not is_running(victim))
        after = agent.workers(2)
        assert master.ends()[victim] == -number
        (new,) = set(after) - set(before)
        assert set(before) - set(after) == {victim}
        assert after[new]["RANK"] == "1"
        assert after[new]["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
    agent.end(0)
    assert agent.finish()[0] == 0


def test_workers_are_forked_also_by_a_second_fork_server(start: Start) -> None:
    agent = start("--nproc-per-node", "2", program=FORKED)
    (server,) = {int(env["IMPORTED_BY"]) for env in agent.workers(2).values()}
    replacements = []
    for without_server in (False, True, False):
        before = agent.workers(2)
        if without_server:
            os.kill(server, signal.SIGKILL)
            wait_for(lambda: not is_running(server))
        victim = next(pid for pid, env in before.items() if env["RANK"] == "1")
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda victim=victim: not is_running(victim))
        after = agent.workers(2)
        (new,) = after.keys() - before.keys()
        replacements.append((new, int(after[new]["IMPORTED_BY"])))
    first, second, third = replacements
    assert first[1] == server
    assert second[1] == second[0], "it is executed while there is no server"
    assert third[1] not in (server, third[0])
    last = agent.workers(2)[third[0]]
    assert (last["RANK"], last["TORCHELASTIC_RESTART_COUNT"]) == ("1", "3")
    agent.end(0)
    assert agent.finish()[0] == 0


def test_a_failing_worker_ends_the_job_with_its_rank_and_its_exception(
    start: Start, master: ScriptedMaster
) -> None:
    agent = start("--nproc-per-node", "2")
    workers = agent.workers(2)
    agent.end(77, 1)
    err = agent.stderr_at_end(1)
    lines = err.splitlines()
    trace = lines.index("rank 1 | Traceback (most recent call last):")
    assert lines[trace + 1].startswith("rank 1 |   File ")
    assert "rank 1 | ValueError: too bad" in lines
    error, logs = lines[-2:]
    assert re.fullmatch(r"error: \S+/worker.py: rank 1 ended \(exit code 1\): .*too bad.*", error)
    kept = {p.name: p.read_text() for p in Path(logs.removeprefix("logs: ")).glob("*/*/1/*.log")}
    assert kept["stdout.log"] == "worker 1 begins\n"
    assert kept["stderr.log"].splitlines()[-1] == "ValueError: too bad"
    assert not re.search("distributed/run.py|error file|FAILED|OMP_NUM_THREADS", err), (
        "noise of a launcher"
    )
    assert not any(map(is_running, workers))
    last = master.told[-1]
    assert "rank 1 ended (exit code 1)" in last.error
    assert "too bad" in last.error
    assert "ValueError" in last.traceback
    assert sorted(master.ends().values()) == [-15, 1]


@pytest.mark.slow
def test_workers_without_enough_memory_fail_the_job_which_says_so(
    start: Start, master: ScriptedMaster
) -> None:
    why = "the kernel killed the process, because memory was short"
    agent = start("--nproc-per-node", "1")
    (first,) = agent.workers(1)
    with memory_group("edl-agent", 400 << 20) as enter:
        for pid in (agent.process.pid, first):
            enter(pid)
        agent.end(9)
        err = agent.stderr_at_end(1)
    assert re.search(rf"error: \S+/worker.py: rank 0 ended \(SIGKILL\): {why}\n", err)
    assert f"(pid {first}) ended (SIGKILL: {why}): starting a replacement" in err
    assert master.ends()[first] == -9
    assert {w.why for told in master.told for w in told.workers if w.exited} == {why}


def test_the_others_are_asked_to_end_before_the_process_of_a_failed_worker_has_ended(
    start: Start, master: ScriptedMaster
) -> None:
    agent = start("--nproc-per-node", "2", script=("lingers",))
    failing, other = sorted(agent.workers(2).items(), key=lambda item: item[1]["RANK"] == "0")
    agent.end(77, 1)
    wait_for(lambda: not is_running(other[0]))
    assert is_running(failing[0])
    (agent.folder / "leave").touch()
    assert "rank 1 ended (exit code 1)" in agent.stderr_at_end(1)
    assert master.ends() == {other[0]: -15, failing[0]: 1}


def test_failures_are_made_good_as_often_as_max_restarts_says(
    start: Start, master: ScriptedMaster
) -> None:
    agent = start("--nproc_per_node=2", "--max_restarts=1")
    first = agent.workers(2)
    for rank in (0, 1):  # of one moment: they count once
        agent.end(5, rank)
    wait_for(lambda: not any(map(is_running, first)))
    agent.workers(2)
    agent.end(6, 0)
    err = agent.stderr_at_end(1)
    assert "rank 0 ended (exit code 6)\n" in err


def test_the_master_has_a_worker_killed_and_says_how_many_run(
    start: Start, master: ScriptedMaster
) -> None:
    agent = start("--nproc-per-node", "2", "--nnodes", "1:3")
    before = agent.workers(2)
    victim = min(before)
    master.answer = pb.AgentReportResponse(nodes=1, kill=[victim, os.getpid()])
    wait_for(lambda: not is_running(victim))
    after = agent.workers(2)
    assert set(before) - set(after) == {victim}
    master.answer = pb.AgentReportResponse(nodes=1, workers_wanted=4)
    assert set(after) < set(agent.workers(4))
    master.answer = pb.AgentReportResponse(nodes=1, workers_wanted=1)
    (last,) = agent.workers(1).values()
    assert last["RANK"] == "0"
    agent.end(0)
    assert agent.finish()[0] == 0


def test_a_signal_leaves_nothing_behind(start: Start, master: ScriptedMaster) -> None:
    agent = start("--nproc-per-node", "2", "--shutdown-timeout", "1", script=("deaf",))
    workers = agent.workers(2)
    agent.signal(signal.SIGTERM)
    assert agent.finish()[0] == 143
    assert not any(map(is_running, workers))
    assert master.stops == ["SIGTERM"]
    assert set(master.ends().values()) == {-9}


def test_a_signal_after_the_end_of_the_script_stops_nothing(
    start: Start, master: ScriptedMaster
) -> None:
    agent = start("--nproc-per-node", "1", script=("reader",))
    (worker,) = agent.workers(1)
    master.finishes = True  # the stop comes too late
    os.kill(worker, signal.SIGTERM)
    wait_for(lambda: master.told[-1].done)
    agent.signal(signal.SIGINT)
    assert agent.finish()[0] == 0
    # What a worker that ended well has forked stays, as with torchrun.
    os.kill(int((agent.folder / f"reader-of-{worker}").read_text()), signal.SIGKILL)


def test_a_notice_of_preemption_is_as_sigterm(
    start: Start, master: ScriptedMaster, tmp_path: Path
) -> None:
    notice = str(tmp_path / "leave")
    agent = start("--nproc-per-node", "2", "--preemption-notice", notice)
    workers = agent.workers(2)
    (tmp_path / "leave").touch()
    code, _, err = agent.finish()
    assert code == 143
    assert f"notice of preemption: {notice} exists" in err
    assert not any(map(is_running, workers))
    assert master.stops == ["SIGTERM"]


def test_what_a_worker_forked_is_not_asked_before_it_and_ends_with_it(
    start: Start, master: ScriptedMaster
) -> None:
    """Readers of a DataLoader that die first are an error in the middle of a step."""
    agent = start("--nproc-per-node", "2", script=("reader",))
    workers = agent.workers(2)
    readers = {pid: int((agent.folder / f"reader-of-{pid}").read_text()) for pid in workers}
    master.answer = pb.AgentReportResponse(nodes=1, workers_wanted=1)
    (last,) = agent.workers(1)
    wait_for(lambda: [pid for pid, reader in readers.items() if is_running(reader)] == [last])
    agent.signal(signal.SIGINT)
    assert agent.finish()[0] == 130
    wait_for(lambda: not any(map(is_running, readers.values())))
    assert [file.name for file in agent.folder.glob("*-asked")] == ["worker-asked"]


def test_behind_a_shell_script_the_whole_group_is_asked(start: Start, tmp_path: Path) -> None:
    shell = tmp_path / "wrapped.sh"
    shell.write_text(f"#!/bin/sh\ntrap : TERM\n{sys.executable} $*\n")
    shell.chmod(0o755)
    agent = start("--workers", "1", "--no-python", str(shell), script=("reader",))
    agent.workers(1)
    agent.signal(signal.SIGTERM)
    assert agent.finish()[0] == 143
    assert (agent.folder / "worker-asked").exists()


def test_a_second_ctrl_c_does_not_wait(start: Start, master: ScriptedMaster) -> None:
    agent = start("--nproc-per-node", "1", "--shutdown-timeout", "1000", script=("deaf",))
    (worker,) = agent.workers(1)
    agent.signal(signal.SIGINT)
    wait_for(lambda: master.stops)
    agent.signal(signal.SIGINT)
    assert agent.finish()[0] == 130
    assert not is_running(worker)


def test_a_job_that_ended_elsewhere(start: Start, master: ScriptedMaster) -> None:
    agent = start("--nproc-per-node", "1")
    agent.workers(1)
    master.answer = pb.AgentReportResponse(over=True, error="node1: rank 3 ended (exit code 1)")
    err = agent.stderr_at_end(1)
    assert "error: node1: rank 3 ended (exit code 1)" in err
    assert set(master.ends().values()) == {-15}


@pytest.mark.parametrize(
    ("rank", "nodes", "said"),
    [(0, 1, "1 of at least 2 machines joined within 60 s"), (3, 4, "no place became free within")],
)
def test_a_job_that_does_not_begin_in_time_is_left(
    start: Start, master: ScriptedMaster, rank: int, nodes: int, said: str
) -> None:
    master.answer = pb.AgentReportResponse(node_rank=rank, nodes=nodes)
    agent = start("--nnodes", "2:3", "--rdzv-conf", "join_timeout=60,last_call_timeout=1")
    wait_for(lambda: len(master.told) > 1)  # it has heard the first answer
    agent.later()
    code, out, err = agent.finish()
    assert code == 1
    assert said in err
    assert "--rdzv-conf last_call_timeout: no effect" in err
    assert master.told[-1].done, "the others continue"
    assert not master.told[-1].error
    assert not out, "no worker is started"


def test_machines_that_met_are_not_left_when_one_goes(start: Start, master: ScriptedMaster) -> None:
    master.answer = pb.AgentReportResponse(nodes=2)
    agent = start("--nnodes", "2", "--rdzv-conf", "join_timeout=60")
    agent.workers(1)
    master.answer = pb.AgentReportResponse(nodes=1)
    agent.later()
    first = len(master.told)
    wait_for(lambda: len(master.told) > first + 4)
    agent.end(0)
    assert agent.finish()[0] == 0


def test_a_conf_that_is_no_duration(start: Start) -> None:
    err = start("--nnodes", "1:2", "--rdzv-conf", "join_timeout=soon").stderr_at_end(2)
    assert "--rdzv-conf join_timeout=soon: write a number of seconds" in err


def test_a_master_that_never_answers_is_named_with_likely_causes(start: Start) -> None:
    with ClosingServer() as other:
        where = ("--rdzv-endpoint", other.address)
        agent = start("--nnodes", "1:2", "--rdzv-conf", "join_timeout=3", *where)
        err = agent.stderr_at_end(1)
    assert f"the master at {other.address} never answered within 3 s" in err
    assert "is the address right" in err


def test_a_master_that_only_accepts_connections_has_never_answered(start: Start) -> None:
    """Its first call is still under way when the time is up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        agent = start("--nnodes", "2", "--rdzv-conf", "join_timeout=1", "--rdzv-endpoint", where)
        err = agent.stderr_at_end(1)
    assert f"the master at {where} never answered within 1 s" in err


def test_logs_lie_where_torchrun_puts_them(start: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    agent = start(
        *("--nproc-per-node", "2", "--log-dir", str(logs), "-r", "3", "-t", "0:1"),
        *("--rdzv-id", "mine", "--duplicate-stdout-filters", "begins"),
    )
    workers = agent.workers(2)
    victim = next(pid for pid, env in workers.items() if env["RANK"] == "1")
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: not is_running(victim))
    agent.workers(2)
    agent.end(0)
    code, out, _ = agent.finish()
    assert code == 0
    assert out == "[default0]:worker 0 begins\n"
    (run,) = logs.iterdir()
    assert run.name.startswith("mine_")
    files = {str(p.relative_to(run)): p.read_text() for p in run.rglob("*.log")}
    assert files == {
        "attempt_0/0/stdout.log": "worker 0 begins\n",
        "attempt_0/0/stderr.log": "",
        "attempt_0/1/stdout.log": "worker 1 begins\n",
        "attempt_0/1/stderr.log": "",
        "attempt_0/filtered_stdout.log": "[default0]:worker 0 begins\n",
        "attempt_1/1/stdout.log": "worker 1 begins\n",
        "attempt_1/1/stderr.log": "",
    }
    assert not (run / "attempt_1" / "0").exists()


def test_torch_2_11_has_no_shutdown_timeout() -> None:
    assert grace_s(SimpleNamespace()) == 0  # type: ignore[arg-type]

"""The node of a script as a process, with workers that are processes, and a real master."""

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

from master.state.actions import Failure
from tests.closing_server import ClosingServer
from tests.memory_group import memory_group
from tests.unit.launch.script.conftest import FORKED, ForkedNode, LocalMaster
from tests.waiting import is_running, wait_for
from torch_edl.config import Launch
from torch_edl.launch.script.workers import grace_s

Start = Callable[..., ForkedNode]
ONE = Launch(per_node=1)


def test_workers_get_the_environment_of_torchrun_and_ours(
    start: Start, master: LocalMaster
) -> None:
    node = start("--nproc-per-node", "2", "--role", "trainer", "--max-restarts", "3")
    workers = node.workers(2)
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
            "TORCH_EDL_PROCESS": f"worker-{env['RANK']}",
        }
        assert {name: env.get(name) for name in expected} == expected
        assert "TORCH_EDL_NODE" not in env
        assert env["MASTER_PORT"].isdecimal()
    node.end(0)
    code, out, err = node.finish()
    assert code == 0
    assert sorted(out.splitlines()) == ["worker 0 begins", "worker 1 begins"]
    assert "is a training script with torch_edl: 2 workers" in err
    assert set(master.codes().values()) == {0}
    assert master.job.state == "finished"


def test_a_lost_worker_is_replaced_alone_and_told(start: Start, master: LocalMaster) -> None:
    node = start("--nproc-per-node", "2")
    for attempt, number in enumerate([signal.SIGKILL, signal.SIGTERM], 1):
        before = node.workers(2)
        victim = next(pid for pid, env in before.items() if env["RANK"] == "1")
        os.kill(victim, number)
        wait_for(lambda victim=victim: not is_running(victim))
        after = node.workers(2)
        assert master.codes()[victim] == -number
        (new,) = set(after) - set(before)
        assert set(before) - set(after) == {victim}
        assert after[new]["RANK"] == "1"
        # The node forgets the end, which is in the stored state now.
        wait_for(lambda: not master.reports[-1].ended)
        assert after[new]["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
    node.end(0)
    assert node.finish()[0] == 0


def test_workers_are_forked_also_by_a_second_fork_server(start: Start) -> None:
    node = start("--nproc-per-node", "2", program=FORKED)
    (server,) = {int(env["IMPORTED_BY"]) for env in node.workers(2).values()}
    replacements = []
    for without_server in (False, True, False):
        before = node.workers(2)
        if without_server:
            os.kill(server, signal.SIGKILL)
            wait_for(lambda: not is_running(server))
        victim = next(pid for pid, env in before.items() if env["RANK"] == "1")
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda victim=victim: not is_running(victim))
        after = node.workers(2)
        (new,) = after.keys() - before.keys()
        replacements.append((new, int(after[new]["IMPORTED_BY"])))
    first, second, third = replacements
    assert first[1] == server
    assert second[1] == second[0], "it is executed while there is no server"
    assert third[1] not in (server, third[0])
    last = node.workers(2)[third[0]]
    assert (last["RANK"], last["TORCHELASTIC_RESTART_COUNT"]) == ("1", "3")
    node.end(0)
    assert node.finish()[0] == 0


def test_a_failing_worker_ends_the_job_with_its_rank_and_its_exception(
    start: Start, master: LocalMaster
) -> None:
    node = start("--nproc-per-node", "2")
    workers = node.workers(2)
    node.end(77, 1)
    err = node.stderr_at_end(1)
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
    (last,) = [end for end in master.ends().values() if end.code == 1]
    assert "rank 1 ended (exit code 1)" in last.error
    assert "too bad" in last.error
    assert "ValueError" in last.traceback
    assert master.job.lifecycle.outcome.traceback == last.traceback
    assert sorted(master.codes().values()) == [-15, 1]


@pytest.mark.slow
@pytest.mark.parametrize("launch", [ONE])
def test_workers_without_enough_memory_fail_the_job_which_says_so(
    start: Start, master: LocalMaster
) -> None:
    why = "the kernel killed the process, because memory was short"
    node = start("--nproc-per-node", "1")
    (first,) = node.workers(1)
    with memory_group("edl-node", 400 << 20) as enter:
        for pid in (node.process.pid, first):
            enter(pid)
        node.end(9)
        err = node.stderr_at_end(1)
    assert re.search(rf"error: \S+/worker.py: rank 0 ended \(SIGKILL\): {why}\n", err)
    assert f"(pid {first}) ended (SIGKILL: {why})\n" in err
    assert master.codes()[first] == -9
    assert {end.why for end in master.ends().values()} == {why}


def test_the_others_are_asked_to_end_before_the_process_of_a_failed_worker_has_ended(
    start: Start, master: LocalMaster
) -> None:
    node = start("--nproc-per-node", "2", script=("lingers",))
    failing, other = sorted(node.workers(2).items(), key=lambda item: item[1]["RANK"] == "0")
    node.end(77, 1)
    wait_for(lambda: not is_running(other[0]))
    assert is_running(failing[0])
    (node.folder / "leave").touch()
    assert "rank 1 ended (exit code 1)" in node.stderr_at_end(1)
    assert master.codes() == {other[0]: -15, failing[0]: 1}


@pytest.mark.parametrize("launch", [Launch(per_node=2, max_restarts=1)])
def test_failures_are_made_good_as_often_as_max_restarts_says(
    start: Start, master: LocalMaster
) -> None:
    node = start("--nproc_per_node=2", "--max_restarts=1")
    first = node.workers(2)
    for rank in (0, 1):  # of one moment: they count once
        node.end(5, rank)
    wait_for(lambda: not any(map(is_running, first)))
    node.workers(2)
    node.end(6, 0)
    err = node.stderr_at_end(1)
    assert "rank 0 ended (exit code 6)\n" in err


def test_the_master_has_a_worker_killed_and_says_how_many_run(
    start: Start, master: LocalMaster
) -> None:
    node = start("--nproc-per-node", "2")
    before = node.workers(2)
    victim = next(pid for pid, env in before.items() if env["TORCH_EDL_PROCESS"] == "worker-1")
    with master.service.changed:
        master.job.fleet.lost(1)
    wait_for(lambda: not is_running(victim))
    after = node.workers(2)
    assert set(before) - set(after) == {victim}
    master.scale(4)
    assert set(after) < set(node.workers(4))
    master.scale(1)
    (last,) = node.workers(1).values()
    assert last["RANK"] == "0"
    node.end(0)
    assert node.finish()[0] == 0


def test_a_worker_that_is_lost_while_the_master_is_away_is_replaced_once_it_is_back(
    start: Start, master: LocalMaster
) -> None:
    node = start("--nproc-per-node", "2")
    before = node.workers(2)
    victim, other = sorted(before)
    with master.service.changed:  # neither a report nor an order passes
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not is_running(victim))
    after = node.workers(2)
    assert set(before) & set(after) == {other}
    assert sorted(env["RANK"] for env in after.values()) == ["0", "1"]
    assert list(master.codes().values()) == [-9]
    node.end(0)
    assert node.finish()[0] == 0


def test_a_signal_leaves_nothing_behind(start: Start, master: LocalMaster) -> None:
    node = start("--nproc-per-node", "2", "--shutdown-timeout", "1", script=("deaf",))
    workers = node.workers(2)
    node.signal(signal.SIGTERM)
    assert node.finish()[0] == 143
    assert not any(map(is_running, workers))
    assert "stopping: SIGTERM" in master.texts()
    assert set(master.codes().values()) == {-9}


@pytest.mark.parametrize("launch", [ONE])
def test_a_signal_after_the_end_of_the_script_stops_nothing(
    start: Start, master: LocalMaster
) -> None:
    node = start("--nproc-per-node", "1", script=("reader",))
    (worker,) = node.workers(1)
    with master.service.changed:  # the stop comes too late: the end was reported before
        os.kill(worker, signal.SIGTERM)
        wait_for(lambda: master.codes() == {worker: 0})
    wait_for(lambda: master.job.lifecycle.outcome)
    with master.service.changed:
        node.signal(signal.SIGINT)
        wait_for(lambda: "SIGINT: stopping 0 workers" in node.stderr())
    assert node.finish()[0] == 0
    # What a worker that ended well has forked stays, as with torchrun.
    os.kill(int((node.folder / f"reader-of-{worker}").read_text()), signal.SIGKILL)


def test_a_notice_of_preemption_is_as_sigterm(
    start: Start, master: LocalMaster, tmp_path: Path
) -> None:
    notice = str(tmp_path / "leave")
    node = start("--nproc-per-node", "2", "--preemption-notice", notice)
    workers = node.workers(2)
    (tmp_path / "leave").touch()
    code, _, err = node.finish()
    assert code == 143
    assert f"notice of preemption: {notice} exists" in err
    assert not any(map(is_running, workers))
    assert "stopping: SIGTERM" in master.texts()


def test_what_a_worker_forked_is_not_asked_before_it_and_ends_with_it(
    start: Start, master: LocalMaster
) -> None:
    """Readers of a DataLoader that die first are an error in the middle of a step."""
    node = start("--nproc-per-node", "2", script=("reader",))
    workers = node.workers(2)
    readers = {pid: int((node.folder / f"reader-of-{pid}").read_text()) for pid in workers}
    master.scale(1)
    (last,) = node.workers(1)
    wait_for(lambda: [pid for pid, reader in readers.items() if is_running(reader)] == [last])
    node.signal(signal.SIGINT)
    assert node.finish()[0] == 130
    wait_for(lambda: not any(map(is_running, readers.values())))
    assert [file.name for file in node.folder.glob("*-asked")] == ["worker-asked"]


@pytest.mark.parametrize("launch", [ONE])
def test_behind_a_shell_script_the_whole_group_is_asked(
    start: Start, tmp_path: Path, master: LocalMaster
) -> None:
    shell = tmp_path / "wrapped.sh"
    shell.write_text(f"#!/bin/sh\ntrap : TERM\n{sys.executable} $*\n")
    shell.chmod(0o755)
    node = start("--workers", "1", "--no-python", str(shell), script=("reader",))
    node.workers(1)
    node.signal(signal.SIGTERM)
    assert node.finish()[0] == 143
    assert (node.folder / "worker-asked").exists()


@pytest.mark.parametrize("launch", [ONE])
def test_a_second_ctrl_c_does_not_wait(start: Start, master: LocalMaster) -> None:
    node = start("--nproc-per-node", "1", "--shutdown-timeout", "1000", script=("deaf",))
    (worker,) = node.workers(1)
    node.signal(signal.SIGINT)
    wait_for(lambda: "stopping: SIGINT" in master.texts())
    node.signal(signal.SIGINT)
    assert node.finish()[0] == 130
    assert not is_running(worker)


@pytest.mark.parametrize("launch", [ONE])
def test_a_job_that_ended_elsewhere(start: Start, master: LocalMaster) -> None:
    node = start("--nproc-per-node", "1")
    node.workers(1)
    master.service.apply(Failure("node1: rank 3 ended (exit code 1)"))
    err = node.stderr_at_end(1)
    assert err.count("node1: rank 3 ended (exit code 1)") == 1
    assert "error: node1: rank 3 ended (exit code 1)" in err
    assert set(master.codes().values()) == {-15}


@pytest.mark.parametrize("launch", [ONE])
def test_a_node_for_which_no_place_becomes_free_in_time_leaves(
    start: Start, master: LocalMaster
) -> None:
    master.join("other")
    node = start("--rdzv-conf", "join_timeout=60,last_call_timeout=1")
    wait_for(lambda: "waits for a free place" in node.stderr())
    node.later()
    code, out, err = node.finish()
    assert code == 1
    assert "the job has its 1 machine (--nnodes)" in err
    assert "none became free within 60 s (--rdzv-conf join_timeout)" in err
    assert "--rdzv-conf last_call_timeout: no effect" in err
    assert master.job.lifecycle.outcome is None, "the others continue"
    assert not out, "no worker is started"


def test_a_conf_that_is_no_duration(start: Start) -> None:
    node = start("--nnodes", "1:2", "--rdzv-conf", "join_timeout=soon", alone=True)
    err = node.stderr_at_end(2)
    assert "--rdzv-conf join_timeout=soon: write a number of seconds" in err


def test_a_master_that_never_answers_is_named_with_likely_causes(start: Start) -> None:
    with ClosingServer() as other:
        where = ("--rdzv-endpoint", other.address)
        node = start("--nnodes", "1:2", "--rdzv-conf", "join_timeout=3", *where, alone=True)
        err = node.stderr_at_end(1)
    assert f"the master at {other.address} never answered within 3 s" in err
    assert "is the address right" in err


def test_a_master_that_only_accepts_connections_has_never_answered(start: Start) -> None:
    """Its first call is still under way when the time is up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ("--rdzv-conf", "join_timeout=1", "--rdzv-endpoint", where)
        node = start("--nnodes", "2", *words, alone=True)
        err = node.stderr_at_end(1)
    assert f"the master at {where} never answered within 1 s" in err


def test_logs_lie_where_torchrun_puts_them(start: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    node = start(
        *("--nproc-per-node", "2", "--log-dir", str(logs), "-r", "3", "-t", "0:1"),
        *("--rdzv-id", "mine", "--duplicate-stdout-filters", "begins"),
    )
    workers = node.workers(2)
    victim = next(pid for pid, env in workers.items() if env["RANK"] == "1")
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: not is_running(victim))
    node.workers(2)
    node.end(0)
    code, out, _ = node.finish()
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

"""Nodes of scripts and the masters that they start: one machine, or several by an endpoint."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.place import Place
from tests.waiting import HANG_S, is_running, wait_for
from torch_edl.wire.endpoint import free_port, is_remote, own_address

from .conftest import WORKER, RunningNode


class NodeProcess(RunningNode):
    """A node in a process of its own."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        super().__init__(folder)
        self.process = process

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, once it has ended."""
        out, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, out, err


class NodePlace(Place):
    """A folder in which nodes run."""

    def run(self, *words: str, name: str = "node", arg: str = "") -> NodeProcess:
        """Starts ``torch-edl run`` of the script that tells of itself in a folder of that name."""
        out = self.folder / name
        out.mkdir()
        command = ["run", *words, WORKER, *filter(None, [arg])]
        process = self.edl(*command, env={**self.env, "WORKER_FOLDER": str(out)})
        return NodeProcess(out, process)

    def ask(self, *words: str) -> str:
        """What a command prints."""
        process = self.edl(*words)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, err
        return out

    def master(self, job: str) -> dict[str, Any]:
        """Where it listens, once it does."""
        file = self.folder / "home" / "jobs" / job / "master.json"
        wait_for(file.exists)
        return json.loads(file.read_text())  # type: ignore[no-any-return]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[NodePlace]:
    place = NodePlace(tmp_path)
    place.env.pop("TORCH_EDL_TOKEN", None)
    yield place
    place.close()


@pytest.fixture
def endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


def test_a_job_of_one_machine_is_scaled_and_outlives_its_master(place: NodePlace) -> None:
    node = place.run("--workers", "1:2", "--job-name", "one")
    workers = node.workers(2)
    before = place.master("one")
    assert {env["TORCH_EDL_MASTER"] for env in workers.values()} == {before["address"]}
    os.kill(before["pid"], signal.SIGKILL)
    after = wait_for(lambda: (found := place.master("one"))["pid"] != before["pid"] and found)
    assert after["address"] == before["address"]
    assert node.workers(2).keys() == workers.keys()
    # A worker that is lost with the master is replaced by the next one.
    before, victim = place.master("one"), min(workers)
    for pid in (before["pid"], victim):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(victim))
    workers = node.workers(2)
    assert victim not in workers
    place.ask("scale", "one", "--workers", "3")
    assert workers.keys() < node.workers(3).keys()
    place.ask("scale", "one", "--workers", "1")
    (last,) = node.workers(1).values()
    assert last["LOCAL_RANK"] == "0"
    node.end(0)
    err = node.stderr_at_end(0)
    assert "1 to 2 workers, job one" in err
    assert "the master ended (signal 9); starting it again" in err
    assert json.loads(place.ask("status", "one", "--json"))["state"] == "finished"
    wait_for(lambda: not place.processes())


def test_ctrl_c_ends_the_job_and_leaves_nothing(place: NodePlace) -> None:
    node = place.run("--workers", "2", "--job-name", "gone")
    node.workers(2)
    node.process.send_signal(signal.SIGINT)
    assert node.finish()[0] == 130
    assert not place.processes()
    assert json.loads(place.ask("status", "gone", "--json"))["state"] == "stopped"


def test_a_killed_node_takes_everything_with_it(place: NodePlace) -> None:
    node = place.run("--workers", "2", "--job-name", "dead", arg="deaf")
    node.workers(2)
    node.process.kill()
    wait_for(lambda: not place.processes())


def test_nodes_that_begin_at_once_start_one_master_and_end_at_one_failure(
    place: NodePlace, endpoint: str
) -> None:
    words = ["--nnodes", "1:3", "--nproc-per-node", "2", "--rdzv-endpoint", endpoint]
    nodes = [place.run(*words, "--rdzv-id", "many", name=name) for name in ("one", "two")]
    envs = [env for node in nodes for env in node.workers(2).values()]
    assert {env["TORCH_EDL_MASTER"] for env in envs} == {endpoint}
    assert sorted(env["RANK"] for env in envs) == ["0", "1", "2", "3"]
    assert sorted(env["GROUP_RANK"] for env in envs) == ["0", "0", "1", "1"]
    assert len([p for p in place.processes() if "master" in p.cmdline()]) == 1
    one, two = nodes
    two.end(77, 1)
    err = two.stderr_at_end(1)
    assert "ValueError: too bad" in err
    err = one.stderr_at_end(1)
    assert "ended (exit code 1)" in err
    wait_for(lambda: not place.processes())


def test_a_job_that_is_stopped(place: NodePlace) -> None:
    node = place.run("--workers", "1", "--job-name", "halt")
    workers = node.workers(1)
    place.ask("stop", "halt")
    err = node.stderr_at_end(1)
    assert "error: the job was stopped: torch-edl stop" in err
    assert not any(map(is_running, workers))
    assert json.loads(place.ask("status", "halt", "--json"))["state"] == "stopped"


def test_a_token_that_can_be_guessed_is_rejected_on_one_machine_too(place: NodePlace) -> None:
    """Other users of the machine reach the port, and could search for the token."""
    place.env["TORCH_EDL_TOKEN"] = "open sesame"
    err = place.run("--rdzv-endpoint", f"127.0.0.1:{free_port()}").stderr_at_end(2)
    assert "TORCH_EDL_TOKEN: 11 characters" in err
    assert "openssl rand -base64 32" in err
    assert "sesame" not in err


@pytest.mark.slow
def test_nodes_meet_off_loopback_if_they_have_the_token(place: NodePlace) -> None:
    """At an address of this machine that others could reach; all calls are encrypted there."""
    host = own_address("192.0.2.1:9")  # an address of nobody: the way there begins at ours
    if not is_remote(f"{host}:1"):
        pytest.skip("this machine has no network")
    place.env["TORCH_EDL_TOKEN"] = token = secrets.token_urlsafe(32)
    words = ["--nnodes", "2", "--rdzv-endpoint", f"{host}:{free_port()}", "--rdzv-id", "far"]
    one, two = place.run(*words, name="one"), place.run(*words, name="two")
    envs = [env for node in (one, two) for env in node.workers(1).values()]
    assert sorted(env["RANK"] for env in envs) == ["0", "1"]
    assert {env["TORCH_EDL_MASTER"].rpartition(":")[0] for env in envs} == {host}
    for node in (one, two):
        node.end(0)
    for node in (one, two):
        err = node.stderr_at_end(0)
        assert token not in err
    assert token not in place.ask("status", "far", "--json")


@pytest.mark.slow
def test_a_machine_too_many_waits_for_a_place(place: NodePlace, endpoint: str) -> None:
    def start(name: str) -> NodeProcess:
        words = ["--nnodes", "2", "--rdzv-endpoint", endpoint, "--rdzv-id", "full"]
        return place.run(*words, name=name)

    # Rank 0 is where the first node is, but where two of them begin at once.
    one = start("one")
    assert one.process.stderr is not None
    assert any(
        "waiting for machines: 1 of at least 2 machines have joined" in line
        for line in one.process.stderr
    )
    two = start("two")
    # As under torchrun, a script may make a process group of its own of them.
    envs = [env for node in (one, two) for env in node.workers(1).values()]
    assert [(env["RANK"], env["WORLD_SIZE"]) for env in envs] == [("0", "2"), ("1", "2")]
    assert {env["GROUP_WORLD_SIZE"] for env in envs} == {"2"}
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs}) == 1
    three = start("three")
    assert three.process.stderr is not None
    assert any("waits for a free place" in line for line in three.process.stderr)
    two.process.send_signal(signal.SIGTERM)
    assert two.finish()[0] == 143
    (env,) = three.workers(1).values()
    assert (env["GROUP_RANK"], env["WORLD_SIZE"]) == ("1", "2")
    for node in (one, three):
        node.end(0)
    for node in (one, three):
        assert node.finish()[0] == 0


@pytest.mark.slow
def test_who_comes_after_the_first_node_and_the_master_goes_on_with_the_others(
    place: NodePlace, endpoint: str
) -> None:
    """Without a token that was set by hand, and never as a second job beside the first."""

    def start(name: str, *words: str) -> NodeProcess:
        return place.run(
            *("--nnodes", "1:3", "--rdzv-endpoint", endpoint, "--rdzv-id", "left"),
            *("--heartbeat-timeout", "3", *words),
            name=name,
        )

    one = start("one")
    one.workers(1)
    two = start("two")
    (pid, before), *_ = two.workers(1).items()
    one.process.send_signal(signal.SIGSTOP)  # or it starts the master again
    os.kill(place.master("left")["pid"], signal.SIGKILL)
    one.process.kill()
    # What else might take the place is refused.
    err = place.run("--rdzv-endpoint", endpoint, name="stray").stderr_at_end(2)
    assert f"{endpoint}: nodes of job left wait there for it, not job worker-" in err
    three = start("three")
    (env,) = three.workers(1).values()
    assert env["TORCH_EDL_TOKEN"] == before["TORCH_EDL_TOKEN"]
    assert set(two.workers(1)) == {pid}
    two.end(0)
    three.end(0)
    for node in (two, three):
        err = node.stderr_at_end(0)
    assert "job left lost its master, and nodes wait for it: starting it again" in err
    assert json.loads(place.ask("status", "left", "--json"))["state"] == "finished"


@pytest.mark.slow
def test_too_few_machines_end_the_job_where_its_master_is(place: NodePlace, endpoint: str) -> None:
    words = ["--nnodes", "2", "--rdzv-endpoint", endpoint, "--rdzv-id", "few"]
    node = place.run(*words, "--rdzv-conf", "join_timeout=1.5")
    err = node.stderr_at_end(1)
    assert "no worker started within 1.5 s (--rdzv-conf join_timeout): 1 of at least 2" in err
    status = json.loads(place.ask("status", "few", "--json"))
    assert status["state"] == "failed"
    assert "machines have joined" in status["error"]
    wait_for(lambda: not place.processes())


def test_two_commands_are_two_jobs_unless_they_name_one(place: NodePlace) -> None:
    """One line twice: two results. Who names a job must run what it runs."""
    words = ["--nnodes", "1:4", "--nproc-per-node", "1"]
    named = place.run(*words, "--rdzv-id", "mine", name="named", arg="0.005")
    alone = place.run(*words, name="alone", arg="0.005")
    masters = set()
    for node in (named, alone):
        (env,) = node.workers(1).values()
        assert (env["RANK"], env["WORLD_SIZE"]) == ("0", "1")
        masters.add(env["TORCH_EDL_MASTER"])
    assert len(masters) == 2
    err = place.run(*words, "--rdzv-id", "mine", name="other", arg="0.5").stderr_at_end(1)
    assert "job mine runs another experiment: arguments 0.005 there, 0.5 here" in err
    for node in (named, alone):
        node.end(0)
    for node in (named, alone):
        err = node.stderr_at_end(0)
    assert "--nnodes 1:4: runs on this machine alone, since no rendezvous is named" in err

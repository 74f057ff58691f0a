"""Processes that a fork server forks for a node, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.waiting import HANG_S, is_running, wait_for
from torch_edl.node.children import Children
from torch_edl.node.forks import ForkServer, module_server
from torch_edl.processes.launcher import ProcessExit, ProcessSpec
from torch_edl.processes.local import environment

# The tests look at fork servers and what they fork.
pytestmark = pytest.mark.executed

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Children]]:
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    made: list[Children] = []

    def begin(**env: str) -> Children:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        wakes: SimpleQueue[None] = SimpleQueue()
        forked = ["preloaded", "these", "formats"]
        children = Children(tmp_path, job="j", forked=forked, wakes=wakes)
        made.append(children)
        wakes.get(timeout=HANG_S)
        assert children.is_ready
        return children

    yield begin
    for children in made:
        children.stop_all(grace_s=0)


def spec(id: int, *args: str) -> ProcessSpec:
    return ProcessSpec(role="worker", id=id, module="preloaded", args=args)


def ends(children: Children, count: int = 1) -> list[ProcessExit]:
    found: list[ProcessExit] = []

    def enough() -> bool:
        found.extend(children.poll())
        return len(found) >= count

    wait_for(enough, f"{count} exits")
    return sorted(found, key=lambda each: each.id)


def told(children: Children, id: int) -> Any:
    return json.loads(Path(children.log_path("worker", id)).read_text())


def test_a_forked_process_is_a_child_like_one_that_was_executed(
    start: Callable[..., Children],
) -> None:
    children = start()
    for id in range(2):
        children.start(spec(id, "tell", "one", "two"))
    assert [(end.id, end.code) for end in ends(children, 2)] == [(0, 7), (1, 7)]
    first, second = (told(children, id) for id in range(2))
    assert first["args"] == ["one", "two"]
    assert first["preloaded"] == "these formats"
    assert first["command"] == [sys.executable, "-m", "preloaded", "tell", "one", "two"]
    assert f"PYTHONPATH={PROGRAMS}" in " ".join(first["environment"]), "it stays as it was"
    assert (first["name"], second["name"]) == ("worker-0", "worker-1")
    assert first["main"] == "preloaded"
    assert first["leads"]
    assert first["parent"] == os.getpid()
    assert first["stdin"] == ""
    assert (first["blocked"], first["sigterm"]) == (0, True)
    assert not set(first["draws"]) & set(second["draws"]), "generators must differ"


def test_signals_and_the_end_of_what_it_started(start: Callable[..., Children]) -> None:
    children = start()
    for id in range(3):
        children.start(spec(id, "fork"))
    logs = [Path(children.log_path("worker", id)) for id in range(3)]
    wait_for(lambda: all(log.exists() and log.read_text().strip() for log in logs), "pids")
    forked = [int(log.read_text()) for log in logs]
    children.stop("worker", 0, grace_s=100.0)
    children.stop("worker", 1, grace_s=0.0)
    assert [(end.id, end.signal) for end in ends(children, 2)] == [(0, 15), (1, 9)]
    wait_for(lambda: not any(is_running(pid) for pid in forked[:2]), "they end with it")
    assert is_running(forked[2])
    gone = [Path(f"/proc/{pid}") for pid in forked[:2]]
    wait_for(lambda: children.poll() == [] and not any(each.exists() for each in gone), "no zombie")


@pytest.mark.parametrize("why", ["KEEPS_A_THREAD", "CANNOT_IMPORT"])
def test_without_a_usable_server_processes_are_executed(
    start: Callable[..., Children], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    (tmp_path / "executed.py").write_text("import preloaded; preloaded.run()")
    children = start(**{why: "1"})
    monkeypatch.setenv("PYTHONPATH", f"{PROGRAMS}:{tmp_path}")
    children.start(ProcessSpec(role="worker", id=0, module="executed", args=["tell"]))
    assert [(end.id, end.code) for end in ends(children)] == [(0, 7)]
    assert told(children, 0)["main"] == "__main__"
    children.start(spec(1, "tell"))  # the module itself has no __main__ part: it ends well
    assert [(end.id, end.code) for end in ends(children)] == [(1, 0)]


@pytest.mark.parametrize("format", ["parquet", "no such format"])
def test_workers_of_torch_can_be_forked_after_all_their_imports(format: str) -> None:
    """Neither torch nor Arrow nor pandas leaves a thread, which a forked process would lack."""
    ready: SimpleQueue[None] = SimpleQueue()
    command = module_server("torch_edl.training.worker", format, job="j")
    server = ForkServer(command, environment(), ready=lambda: ready.put(None))
    try:
        ready.get(timeout=HANG_S)
        assert server.is_usable
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
        assert "libtorch" in mapped
        assert ("libarrow" in mapped) == (format == "parquet")
    finally:
        server.close()


def test_a_server_that_is_killed_is_replaced(start: Callable[..., Children]) -> None:
    children = start()
    assert children._server is not None
    first = children._server.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not is_running(first), "its end")
    children.start(spec(0, "tell"))  # executed: it ends well
    assert [end.code for end in ends(children)] == [0]
    wait_for(lambda: children.is_ready, "the next server")
    children.start(spec(1, "tell"))
    assert [end.code for end in ends(children)] == [7]


NODE = """
    import os, sys, time
    from queue import SimpleQueue
    from torch_edl.node.children import Children
    from torch_edl.processes.launcher import ProcessSpec
    wakes = SimpleQueue()
    children = Children(sys.argv[1], job="j", forked=["preloaded"], wakes=wakes)
    wakes.get()
    pids = [
        children.start(ProcessSpec(role="worker", id=id, module="preloaded", args=["wait"]))
        for id in range(2)
    ]
    print(*pids, children._server.pid, flush=True)
    time.sleep(1000)
"""


def test_all_end_with_a_node_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{PROGRAMS}:{root}")
    node = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(NODE), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    pids = [int(word) for word in node.stdout.readline().split()]
    assert all(map(is_running, pids))
    node.kill()
    node.wait()
    wait_for(lambda: not any(map(is_running, pids)), "their ends")
    node.stdout.close()

"""Scripts that are forked: which ones, and that they cannot notice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.waiting import HANG_S, is_running, wait_for
from torch_edl.node.children import Children
from torch_edl.node.scripts import leading_imports
from torch_edl.processes.launcher import Command, ProcessExit, ProcessSpec

PROGRAMS = Path(__file__).parent / "programs"
API = ["torch_edl.api.opening", "torch_edl.api.job", "torch_edl.api.elastic_trainer"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", ["torch"]),
        ('"""Doc."""\nfrom __future__ import annotations\nimport os, sys\nimport torch', ["torch"]),
        ("import numpy as np\nfrom torch import nn", ["numpy", "torch"]),
        ("import torch\nimport torch_edl", ["torch", "torch_edl", *API]),
        ("import torch\nimport pandas\nimport torch_edl", ["torch"]),
        ("import torch\nfrom . import data\nimport torch_edl", ["torch"]),
        ("import torch.utils.data\nimport data", ["torch.utils.data"]),
        ("import numpy", []),
        ("import torch_edl", []),
        ("import pandas\nimport torch", []),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", []),
        ("if True:\n    import torch", []),
        ("import queue\nimport torch", []),
        ("import torch(", []),
    ],
)
def test_imports_of_torch_before_the_first_other_statement(
    tmp_path: Path, source: str, expected: list[str]
) -> None:
    (tmp_path / "queue.py").write_text("")
    (tmp_path / "train.py").write_text(source)
    command = [sys.executable, "-u", str(tmp_path / "train.py"), "--lr", "1"]
    assert leading_imports(command) == expected


def test_a_module_runs_its_packages_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text("import torch")
    (tmp_path / "pkg" / "train.py").write_text("import torch.nn")

    def found(init: str) -> list[list[str]]:
        (tmp_path / "pkg" / "__init__.py").write_text(init)
        return [leading_imports([sys.executable, "-u", "-m", n]) for n in ("pkg", "pkg.train")]

    assert found('"""Doc."""') == [["torch"], ["torch.nn"]]
    assert found("import data") == [[], []]
    assert leading_imports([sys.executable, "-u", "-m", "pkg.none"]) == []


@pytest.mark.parametrize("command", [["train.sh"], ["/usr/bin/python3", "-u"], [sys.executable]])
def test_other_programs_are_not_scripts(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    assert leading_imports([*command, str(tmp_path / "train.py")]) == []


class Runner:
    """Runs one script, forked or executed, until its end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self._made: list[Children] = []
        self.script = folder / "telling.py"
        shutil.copy(PROGRAMS / "telling.py", self.script)

    def children(self, words: list[str], *, forks: bool = True) -> Children:
        wakes: SimpleQueue[None] = SimpleQueue()
        forked = Command(words=words) if forks else ()
        children = Children("", job="j", forked=forked, wakes=wakes)
        self._made.append(children)
        if children._server is not None:
            wakes.get(timeout=HANG_S)
        assert children.is_ready
        return children

    def start(self, children: Children, words: list[str], id: int = 0, **env: str) -> int:
        command = Command(
            words=words,
            env=env,
            stdout=str(self._folder / f"{id}.out"),
            stderr=str(self._folder / f"{id}.err"),
        )
        return children.start(ProcessSpec(role="worker", id=id, command=command))

    def told(self, id: int = 0) -> dict[str, Any]:
        return json.loads((self._folder / f"{id}.out").read_text().splitlines()[0])  # type: ignore[no-any-return]

    def output(self, id: int = 0) -> tuple[list[str], str]:
        lines = (self._folder / f"{id}.out").read_text().splitlines()
        return lines[1:], (self._folder / f"{id}.err").read_text()

    def close(self) -> None:
        for children in self._made:
            children.stop_all(grace_s=0)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.setenv("PYTHONPATH", f"{PROGRAMS / 'stub'}:{os.environ.get('PYTHONPATH', '')}")
    made = Runner(tmp_path, monkeypatch)
    yield made
    made.close()


def ends(children: Children, count: int = 1) -> list[ProcessExit]:
    found: list[ProcessExit] = []

    def enough() -> bool:
        found.extend(children.poll())
        return len(found) >= count

    wait_for(enough, f"{count} exits")
    return sorted(found, key=lambda each: each.id)


@pytest.mark.parametrize("how", ["script", "module"])
@pytest.mark.parametrize("end", ["0", "7", "raise"])
def test_a_forked_script_cannot_notice(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, how: str, end: str
) -> None:
    monkeypatch.chdir(runner.script.parent)
    program = [str(runner.script)] if how == "script" else ["-m", "telling"]
    words = [sys.executable, "-u", *program, end, "a b"]
    seen = []
    for forks in (False, True):
        children = runner.children(words, forks=forks)
        runner.start(children, words, RANK="3")
        code = ends(children)[0].code
        told = runner.told()
        assert told["forked"] == forks
        seen.append((code, runner.output(), told["interpreter"]))
        children.stop_all(grace_s=0)
    assert seen[0] == seen[1]
    assert seen[0][0] == {"0": 0, "7": 7, "raise": 1}[end]
    assert seen[0][1][0] == ["the end"]


def test_with_torch_itself_and_all_draws_differ(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    words = [sys.executable, "-u", str(runner.script), "0"]
    children = runner.children(words)
    assert children._server is not None
    assert children._server.is_usable
    for id in range(2):
        runner.start(children, words, id=id, RANK=str(id))
    runner.start(runner.children(words, forks=False), words, id=2, RANK="2")
    ends(children, 2)
    ends(runner._made[-1])
    first, second, executed = (runner.told(id) for id in range(3))
    for told in (first, second, executed):
        told["interpreter"]["environment"].pop("RANK")
        told["interpreter"].pop("files")
    assert first["interpreter"] == second["interpreter"] == executed["interpreter"]
    assert not set(first["draws"]) & set(second["draws"])


@pytest.mark.parametrize("why", ["PRINTS", "KEEPS_A_THREAD", "TRACES"])
def test_what_a_script_could_notice_of_the_imports_prevents_the_fork(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setenv(why, "1")
    words = [sys.executable, "-u", str(runner.script), "7"]
    children = runner.children(words)
    runner.start(children, words)
    assert ends(children)[0].code == 7
    if why != "PRINTS":
        assert not runner.told()["forked"]
    else:
        assert (runner.script.parent / "0.out").read_text().startswith("this release is the last")


def test_a_file_of_the_user_comes_before_a_module_of_that_name(runner: Runner) -> None:
    (runner.script.parent / "torch.py").write_text("initial_seed = lambda: 5")
    words = [sys.executable, "-u", str(runner.script), "7"]
    children = runner.children(words)
    runner.start(children, words)
    assert ends(children)[0].code == 7
    assert runner.told()["draws"][1] == 5


@pytest.mark.parametrize(
    ("env", "forked"),
    [
        ({"RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2", "CUDA_VISIBLE_DEVICES": "3"}, True),
        ({"OMP_NUM_THREADS": "77"}, False),
    ],
)
def test_variables_that_torch_reads_at_its_import_are_those_of_the_server(
    runner: Runner, env: dict[str, str], forked: bool
) -> None:
    words = [sys.executable, "-u", str(runner.script), "7"]
    children = runner.children(words)
    runner.start(children, words, **env)
    ends(children)
    told = runner.told()
    assert told["forked"] == forked
    assert told["interpreter"]["environment"].items() >= env.items()


def test_the_customization_of_the_environment_runs_in_each_process(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    code = "import os, sys\nsys.customized = os.environ['RANK']\nprint('customized', os.getpid())"
    (tmp_path / "site" / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ['PYTHONPATH']}")
    words = [sys.executable, "-u", str(runner.script), "7"]
    children = runner.children(words)
    pid = runner.start(children, words, RANK="3")
    ends(children)
    first, told = (tmp_path / "0.out").read_text().splitlines()[:2]
    assert first == f"customized {pid}"
    assert json.loads(told)["forked"]
    assert json.loads(told)["interpreter"]["customized"][0]


def test_signals_and_a_server_that_is_killed(runner: Runner) -> None:
    words = [sys.executable, "-u", str(runner.script), "wait"]
    children = runner.children(words)
    for id in range(2):
        runner.start(children, words, id=id)
    outs = [runner.script.parent / f"{id}.out" for id in range(2)]
    wait_for(lambda: all(out.read_text().endswith("\n") for out in outs), "both")
    children.stop("worker", 0, grace_s=100.0)
    assert ends(children)[0].signal == signal.SIGTERM
    assert children._server is not None
    server = children._server.pid
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not is_running(server), "its end")
    runner.start(children, words, id=2)  # executed
    wait_for(lambda: children.is_ready, "the next server")
    runner.start(children, words, id=3)
    outs = [runner.script.parent / f"{id}.out" for id in (2, 3)]
    wait_for(lambda: all(out.read_text().endswith("\n") for out in outs), "both")
    assert [runner.told(id)["forked"] for id in (1, 2, 3)] == [True, False, True]

"""Scripts under torch-edl run against real torchrun, and torchrun's agents at our rendezvous."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import HANG_S, wait_for
from torch_edl.config.environment import ENV_UNSEEN

ROOT = Path(__file__).parents[2]
GANG = Path(__file__).with_name("scripts") / "gang.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TORCH_EDL = [sys.executable, "-m", "torch_edl.cli", "run"]

# What must differ from one run to the next.
_OF_THE_RUN = {
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHINDUCTOR_CACHE_DIR",
    "KINETO_DAEMON_INIT_DELAY_S",
}


class Launches:
    """Commands in a folder of their own; what is left of them is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir()
        self.env = {
            **os.environ,
            "TORCH_EDL_HOME": str(folder / "home"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # else torch-edl run sets it
        }
        self.env.pop("TORCH_EDL_TOKEN", None)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            list(words),
            cwd=self.folder,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def finish(self, *words: str, **env: str) -> tuple[int, str, str]:
        process = self.start(*words, **env)
        out, err = process.communicate(timeout=HANG_S)
        return process.returncode, out, err

    def gangs(self) -> dict[int, dict[str, str]]:
        """Environments of all workers so far, by pid."""
        return {
            int(file.stem.rpartition("-")[2]): json.loads(file.read_text())
            for file in self.out.glob("*.json")
        }

    def left(self) -> list[psutil.Process]:
        """Processes of ours that run."""
        found = []
        for process in psutil.process_iter(["environ", "status"]):
            environ = process.info["environ"] or {}
            if environ.get("TORCH_EDL_HOME") == self.env["TORCH_EDL_HOME"]:
                found.append(process)
        return found


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    launches = Launches(tmp_path)
    yield launches
    for process in launches.left():
        process.kill()
    for started in launches.started:
        started.communicate()


def test_a_plain_script_runs_as_under_torchrun(launches: Launches) -> None:
    def run(name: str, *command: str) -> tuple[int, str, dict[str, str], dict[str, dict[str, str]]]:
        logs = launches.folder / name
        words = [
            "--nproc-per-node",
            "2",
            "--log-dir",
            str(logs),
            "--redirects",
            "2",
            "--tee",
            "1:1",
        ]
        code, out, err = launches.finish(
            *command, *words, "--role", "trainer", str(GANG), str(launches.out), "--lr", "0.1"
        )
        assert code == 0, err
        (run_folder,) = logs.iterdir()
        files = {str(p.relative_to(run_folder)): p.read_text() for p in run_folder.rglob("*.log")}
        ranks = {env["RANK"]: env for env in launches.gangs().values()}
        for file in launches.out.glob("*.json"):
            file.unlink()
        return code, "\n".join(sorted(out.splitlines())), files, ranks

    theirs = run("theirs", *TORCHRUN)
    ours = run("ours", *TORCH_EDL)
    assert ours[:3] == theirs[:3]
    assert ours[3].keys() == theirs[3].keys() == {"0", "1"}
    for rank, env in theirs[3].items():
        mine = ours[3][rank]
        # With it, init() warns where a package calls it, and the script does not use torch_edl.
        assert mine.keys() == env.keys() | {ENV_UNSEEN}
        differing = {name for name in env if env[name] != mine[name]}
        assert differing <= _OF_THE_RUN


@pytest.mark.slow  # what our agent reports of a failure is in tests/unit/launch/agent
def test_a_plain_script_fails_as_under_torchrun(launches: Launches) -> None:
    def run(*command: str) -> tuple[int, list[str]]:
        code, _, err = launches.finish(
            *command, "--nproc_per_node=2", str(GANG), str(launches.out), "fail"
        )
        report = err[err.index("=====") :]
        report = re.sub(r"time +: .*|(pid:|PID) \d+", "", report)
        return code, report.splitlines()

    theirs = run(*TORCHRUN)
    assert theirs[0] == 1
    assert "gang.py FAILED" in "\n".join(theirs[1])
    assert run(*TORCH_EDL) == theirs


_KILLED = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 4 and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"attempt {attempt} sum {one.item()}\\n".encode())  # whole, beside the other's line
dist.destroy_process_group()
"""


@pytest.mark.slow  # with torch's own store about half of all restarts wait for who is gone
def test_a_plain_script_comes_back_after_each_kill(launches: Launches) -> None:
    (launches.folder / "killed.py").write_text(_KILLED)
    words = ["--nproc-per-node", "2", "--max-restarts", "4", "killed.py"]
    code, out, err = launches.finish(*TORCH_EDL, *words)
    assert (code, out.count("attempt 4 sum 2.0")) == (0, 2), err[-3000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(240)
@pytest.mark.slow  # as tests/unit/test_rendezvous.py does, with whole agents
def test_torchrun_agents_meet_at_our_rendezvous(launches: Launches) -> None:
    port = _free_port()

    def agent() -> subprocess.Popen[str]:
        return launches.start(
            *TORCHRUN,
            *("--rdzv-backend", "edl", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "gang"),
            *("--nnodes", "1:3", "--nproc-per-node", "1", "--max-restarts", "3"),
            *("--rdzv-conf", "last_call_timeout=2"),
            *(str(GANG), str(launches.out), "wait"),
        )

    def gang(size: int, but: set[int]) -> dict[int, dict[str, str]]:
        def formed() -> dict[int, dict[str, str]] | None:
            found = {
                pid: env
                for pid, env in launches.gangs().items()
                if pid not in but and env["WORLD_SIZE"] == str(size)
            }
            return found if len(found) == size else None

        return wait_for(formed)  # type: ignore[no-any-return]

    agents = [agent(), agent()]
    first = gang(2, set())
    agents.append(agent())
    second = gang(3, set(first))
    assert len({env["TORCH_EDL_NODE"] for env in second.values()}) == 3
    assert {env["TORCHELASTIC_RESTART_COUNT"] for env in second.values()} == {"0"}

    # The machine of the first agent, which started the master, is gone.
    victim = agents.pop(0)
    lost = [p.pid for p in psutil.Process(victim.pid).children() if p.pid in second]
    victim.kill()
    assert len(lost) == 1
    os.kill(lost[0], signal.SIGKILL)
    third = gang(2, {*first, *second})
    ports = [{env["MASTER_PORT"] for env in g.values()} for g in (first, second, third)]
    assert [len(p) for p in ports] == [1, 1, 1]
    assert len(set.union(*ports)) == 3, "each round has a store of its own"
    masters = {env["TORCH_EDL_MASTER"] for env in third.values()}
    assert masters == {f"127.0.0.1:{port}"}

    (launches.out / "stop").touch()
    for process in agents:
        _, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, err[-3000:]
    wait_for(lambda: not launches.left())

"""Scripts under torch-edl run against real torchrun."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.place import EDL, Place
from tests.waiting import COMMAND_S
from torch_edl.config.environment import ENV_UNSEEN

GANG = Path(__file__).with_name("scripts") / "gang.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TORCH_EDL = [*EDL, "run"]

# What must differ from one run to the next.
_OF_THE_RUN = {
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHINDUCTOR_CACHE_DIR",
    "KINETO_DAEMON_INIT_DELAY_S",
}


@pytest.fixture
def launches(place: Place) -> Place:
    place.env["PYTHONHASHSEED"] = "0"  # else torch-edl run sets it
    place.env["OMP_NUM_THREADS"] = "1"
    place.env.pop("TORCH_EDL_TOKEN", None)
    (place / "out").mkdir(exist_ok=True)
    return place


def finish(place: Place, *words: str | Path) -> tuple[int, str, str]:
    process = place.start(*words)
    out, err = process.communicate(timeout=COMMAND_S)
    assert not place.processes()
    return process.returncode, out, err


def test_a_plain_script_runs_as_under_torchrun(launches: Place) -> None:
    def run(name: str, *command: str) -> tuple[int, str, dict[str, str], dict[str, dict[str, str]]]:
        logs = launches.folder / name
        words = ["--nproc-per-node", "2", "--redirects", "2", "--tee", "1:1", "--role", "trainer"]
        code, out, err = finish(
            launches, *command, *words, "--log-dir", logs, GANG, launches / "out", "--lr", "0.1"
        )
        assert code == 0, err
        (run_folder,) = logs.iterdir()
        files = {str(p.relative_to(run_folder)): p.read_text() for p in run_folder.rglob("*.log")}
        told = list((launches / "out").glob("*.json"))
        ranks = {env["RANK"]: env for env in (json.loads(file.read_text()) for file in told)}
        for file in told:
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


def test_machines_of_a_plain_script_that_do_not_meet(launches: Place) -> None:
    """The error has the reason and the remedy, and no traceback of torchrun."""
    words = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    code, _, err = finish(launches, *TORCH_EDL, *words, "--rdzv-conf", "join_timeout=1", GANG)
    assert code == 1
    assert "Traceback" not in err
    assert "the machines did not meet (RendezvousTimeoutError); start the command on each" in err


@pytest.mark.slow  # what our node reports of a failure is in tests/unit/launch/script
def test_a_plain_script_fails_as_under_torchrun(launches: Place) -> None:
    def run(*command: str) -> tuple[int, list[str]]:
        code, _, err = finish(
            launches, *command, "--nproc_per_node=2", GANG, launches / "out", "fail"
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
def test_a_plain_script_comes_back_after_each_kill(launches: Place) -> None:
    (launches.folder / "killed.py").write_text(_KILLED)
    words = ["--nproc-per-node", "2", "--max-restarts", "4", "killed.py"]
    code, out, err = finish(launches, *TORCH_EDL, *words)
    assert (code, out.count("attempt 4 sum 2.0")) == (0, 2), err[-3000:]

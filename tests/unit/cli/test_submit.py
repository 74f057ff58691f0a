"""Real jobs from the command line: how they end, and what of it the user sees."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from master.state.lifecycle import LEAVE_WITHIN_S
from tests.closing_server import ClosingServer
from tests.place import Place
from tests.waiting import HANG_S, wait_for
from torch_edl.checkpoint.claim import OWNER_FILE
from torch_edl.cli import submit
from torch_edl.cli.progress import Display
from torch_edl.config import JobConfig
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.launch.jobs.master_process import MasterProcess
from torch_edl.processes.signals import StopSignals

MODEL = """
import sys, time, torch
def model():
    return torch.nn.Linear(1, 1)
def loss(labels, predictions):
    return ((predictions - labels) ** 2).mean()
def optimizer(params):
    return torch.optim.SGD(params, lr=0.01)
def feed(records, mode, metadata):
    print(f"feeding {len(records)} to {mode}")
    if sys.argv[1:2] == ["raise"]:
        print("hash", hash("user-1"))
        raise ValueError("no [red] column")
    if sys.argv[1:2] == ["slow"]:
        time.sleep(0.2)
    x = torch.tensor(records["x"].to_numpy(), dtype=torch.float32)[:, None] / 300
    return x, 2 * x
"""
RECORDS = 300


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Iterator[Place]:
    """A folder with a model file and 300 records; at the end no process of a job may be left."""
    place = Place(tmp_path)
    (place / "net.py").write_text(MODEL)
    (place / "x.csv").write_text("x\n" + "".join(f"{i}\n" for i in range(RECORDS)))
    yield place
    for process in place.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    wait_for(lambda: not job_processes(place), lambda: job_processes(place))


def job_processes(place: Place) -> list[psutil.Process]:
    """Living processes of jobs, without the commands."""
    return [
        each
        for each in place.processes()
        if "torch_edl.cli" not in (each.info["cmdline"] or ())  # None: it is ending
    ]


def start_slow(place: Place) -> subprocess.Popen[str]:
    """A job that would continue for minutes; returns once it trains."""
    words = "run net.py --data x.csv --epochs 1000 --job-name slow --summary s.json -- slow"
    process = place.edl(*words.split())
    log = place / "home/jobs/slow/logs/worker-0.log"
    wait_for(lambda: log.exists() and "feeding 300 to training" in log.read_text())
    return process


def test_ctrl_c_ends_all_processes(place: Place) -> None:
    process = start_slow(place)
    commands = [" ".join(each.cmdline()) for each in job_processes(place)]
    assert len(commands) > 1
    assert all("--job slow" in command for command in commands), "ps does not show the job"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert not job_processes(place)
    assert "SIGINT: stopping the job" in out
    assert "slow: stopped after" in out
    assert err == ""
    summary = json.loads((place / "s.json").read_text())
    assert summary["state"] == "stopped"
    assert [p["exit"] for p in summary["processes"] if p["role"] == "worker"] == ["stopped"]


def test_a_second_ctrl_c_does_not_wait(place: Place) -> None:
    process = start_slow(place)
    worker = next(p for p in job_processes(place) if "torch_edl.training.worker" in p.cmdline())
    worker.suspend()  # it would not hear the end of the job
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert any("SIGINT: stopping" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=HANG_S)
    assert time.monotonic() - began < LEAVE_WITHIN_S
    assert process.returncode == 130
    wait_for(lambda: not job_processes(place))


def test_the_death_of_the_client_ends_the_job(place: Place) -> None:
    process = start_slow(place)
    process.kill()
    process.communicate()
    wait_for(lambda: not job_processes(place))
    status = place.edl("status", "--json")
    assert json.loads(status.communicate()[0])["state"] == "stopped"


def master_pid(place: Place) -> int:
    return int(json.loads((place / "home/jobs/slow/master.json").read_text())["pid"])


_DIES = """
import os, signal, sys
folder = os.path.dirname(__file__)
if sys.orig_argv[1:4] == ["-P", "-m", "master"] and os.path.exists(f"{folder}/dies"):
    with open(f"{folder}/dies", "a") as deaths:
        print(os.getpid(), file=deaths)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_master_that_dies_again_and_again_ends_the_job(place: Place) -> None:
    place.env["PYTHONPATH"] = f"{place.folder}{os.pathsep}{place.env['PYTHONPATH']}"
    (place / "sitecustomize.py").write_text(_DIES)
    process = start_slow(place)
    worker = next(p for p in job_processes(place) if "torch_edl.training.worker" in p.cmdline())
    (place / "dies").touch()  # from now on each dies before it answers
    os.kill(master_pid(place), signal.SIGKILL)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert len((place / "dies").read_text().split()) == 5, "the first one had answered"
    assert "error: the master of the job ended unexpectedly (signal 9)\nlogs: " in err
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert not job_processes(place)
    summary = json.loads((place / "s.json").read_text())
    assert summary["state"] == "failed"
    assert summary["processes"][0]["exit"] == "signal 9"
    kept = json.loads((place / "home/jobs/slow/status.json").read_text())
    assert kept["state"] == "failed"
    assert "(signal 9)" in kept["error"]


def test_a_master_that_is_killed_is_started_again(place: Place) -> None:
    process = start_slow(place)
    worker = next(p for p in job_processes(place) if "torch_edl.training.worker" in p.cmdline())
    killed = master_pid(place)
    os.kill(killed, signal.SIGKILL)
    status = place.edl("status", "slow", "--json").communicate(timeout=HANG_S)[0]
    assert json.loads(status)["state"] in ("starting", "running"), "also while there is none"
    wait_for(lambda: master_pid(place) != killed)
    assert worker.is_running()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (130, "")
    assert "the master was restarted: 1 worker continues" in out
    assert "slow: stopped after" in out


def test_ctrl_c_while_the_master_is_away_leaves_nothing_behind(place: Place) -> None:
    process = start_slow(place)
    os.kill(master_pid(place), signal.SIGKILL)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert not job_processes(place)


def test_an_exception_of_the_users_reaches_the_terminal(place: Place) -> None:
    place.env.pop("PYTHONHASHSEED", None)
    words = "run net.py --data x.csv --job-name j --summary s.json --max-task-failures 2 --seed 5"
    process = place.edl(*words.split(), "--", "raise")
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 2, "a mistake: nothing was trained"
    *trace, last = err.splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: no [red] column"
    assert last.startswith("error: ")
    assert "(records 0 to 299 of " in last
    assert last.partition(" [net.py, line ")[1]
    assert out.startswith("net.py is a model file of PyTorch: job j trains it\n")
    assert "worker-0 | feeding 300 to training" in out
    salted = {**os.environ, "PYTHONHASHSEED": "5"}
    hashed = subprocess.check_output(
        [sys.executable, "-c", "print(hash('user-1'))"], env=salted, text=True
    )
    assert f"worker-0 | hash {hashed}" in out
    assert "no [red] column" in json.loads((place / "s.json").read_text())["error"]
    kept = json.loads((place / "home/jobs/j/status.json").read_text())
    assert kept["traceback"].splitlines() == trace
    events = (place / "home/jobs/j/events.jsonl").read_text().splitlines()
    (failed,) = (e for e in map(json.loads, events) if e["kind"] == "job_failed")
    assert failed["fields"]["traceback"].splitlines() == trace


def test_a_closed_terminal_stops_the_job_as_sigterm_does(place: Place) -> None:
    words = "run net.py --data x.csv --epochs 1000 --job-name tty --checkpoint-dir c -- slow"
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(place.folder)
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
        os.execv(sys.executable, [sys.executable, "-m", "torch_edl.cli", *words.split()])
    log = place / "home/jobs/tty/logs/worker-0.log"
    wait_for(lambda: log.exists() and log.read_text().count("feeding 300") > 2)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert not job_processes(place)
    kept = [each.name for each in (place / "c").iterdir() if each.name != OWNER_FILE]
    assert [name[:5] for name in kept] == ["step-"]
    assert JobFolder("tty").last_status()["state"] == "stopped"


def test_a_job_that_is_detached_goes_on(place: Place) -> None:
    words = "run net.py --data x.csv --epochs 1000 --job-name off --detach --checkpoint-dir c"
    out, err = place.edl(*words.split(), "--", "slow").communicate(timeout=HANG_S)
    assert "stop it: torch-edl stop off" in out, err
    assert job_processes(place)
    status = place.edl("status", "off", "--json").communicate()[0]
    assert json.loads(status)["state"] in ("starting", "running")
    again = place.edl(*words.split())
    assert "a job of that name is running" in again.communicate(timeout=HANG_S)[1]
    assert again.returncode == 2
    log = place / "home/jobs/off/logs/worker-0.log"
    wait_for(lambda: log.exists() and log.read_text().count("feeding 300") > 2)
    assert "off: stopped" in place.edl("stop", "off").communicate(timeout=HANG_S)[0]
    wait_for(lambda: not JobFolder("off").is_watched())
    client = place / "home/jobs/off/logs/client-0.log"
    wait_for(lambda: "newest checkpoint: " in client.read_text())  # the last that it writes
    assert "stopping: torch-edl stop" in client.read_text()
    files = [p.name for p in (place / "home/jobs").iterdir() if p.is_file()]
    assert files == [".create.lock"]


def test_a_master_that_runs_and_never_answers_is_an_error_with_likely_causes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process closes what this client opens, as a firewall or a proxy may."""
    monkeypatch.setattr(submit, "_UNREACHABLE_S", 0.5)
    job = folder.create(JobConfig(name="far", kind="script", model_file="/train.py"))
    with (
        ClosingServer() as other,
        StopSignals(()) as signals,
        contextlib.closing(MasterProcess(job)) as master,
    ):
        master.start_and_listen()
        found = job.master()
        assert found is not None
        job.note_master(dataclasses.replace(found, address=other.address))
        display = Display(Console(file=io.StringIO()))
        client = submit._Client(job=job, master=master, display=display, signals=signals)
        with contextlib.closing(client):
            outcome = client.until_over()
        assert master.exit is not None
    assert outcome.usage_error
    assert f"the master at {other.address} runs and has never answered this" in outcome.error
    assert "is the address right" in outcome.error

"""The master of a model file's job is killed, paused for longer than any process may be silent, or
followed on its port by another user of the machine. Nothing is lost or repeated, and the processes
that it had started continue."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import Job, ModelJob, send
from tests.other_user import false_listener, needs_root
from tests.place import EDL
from tests.waiting import HANG_S
from torch_edl.wire.endpoint import split

RECORDS = 800
PAUSE_S = 6.0  # more than the timeout of heartbeats
TASKS = ["--batch-size", "8", "--records-per-task", "32"]
FLAGS = ["--workers", "2", "--ps", "2", *TASKS]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(FLAGS, id="ps"),
        pytest.param(
            ["--strategy", "local", "--no-shuffle", *TASKS], id="local", marks=pytest.mark.slow
        ),
    ],
)
def test_twice_in_training(start_job: Callable[..., Any], flags: list[str]) -> None:
    job = start_job(RECORDS, *flags, delay_s=0.02)
    job.wait_for(lambda: job.done() > 100)
    before = set(job.pids("worker") + job.pids("ps"))
    job.kill_master()
    job.kill_master()  # in the middle of what it recovers
    job.wait_for(lambda: job.done() > 300)
    job.kill_master()
    job.require_same_processes(before)
    job.check()
    assert job.summary()["records"] == RECORDS


@pytest.mark.slow
def test_while_it_takes_checkpoints(start_job: Callable[..., Any], tmp_path: Path) -> None:
    flags = [*FLAGS, "--checkpoint-every", "4", "--checkpoint-dir", "DIR"]
    job = start_job(2 * RECORDS, *flags, delay_s=0.1)
    newest = ""

    def under_way() -> bool:
        nonlocal newest
        newest = job.status().checkpoint
        return any((tmp_path / "checkpoints").glob(".snapshot-*"))

    for more in (0, 150):
        job.wait_for(lambda n=more: job.done() > n)
        job.wait_for(under_way)
        job.kill_master()
    job.wait_for(lambda: job.status().checkpoint > newest)  # it is taken again, or committed
    job.kill("ps")  # so that one of them counts
    job.check()


@pytest.mark.slow
def test_at_the_end(start_job: Callable[..., Any], tmp_path: Path) -> None:
    """The final evaluation, the last checkpoint and the output are under way."""
    data = ["--eval-data", str(tmp_path / "data-*.parquet"), "--checkpoint-dir", "DIR"]
    job = start_job(RECORDS, *FLAGS, *data)
    job.wait_for(lambda: job.done() > 400)
    job.go_on()
    job.wait_for(lambda: job.done() == RECORDS)
    job.kill_master()
    job.check()
    assert len(job.summary()["evaluations"]) == 1


ECHO = """
import time, torch
def model():
    return torch.nn.Linear(1, 1)
def loss(labels, predictions):
    return ((predictions - labels) ** 2).mean()
def optimizer(params):
    return torch.optim.SGD(params, lr=0.0)
def feed(records, mode, metadata):
    time.sleep(0.05)
    numbers = torch.tensor(records["n"].to_numpy(), dtype=torch.float32)[:, None]
    return numbers if mode == "prediction" else (numbers, numbers)
def eval_metrics_fn():
    return {"mean": lambda labels, predictions: labels[:, 0]}
"""


@pytest.mark.slow
def test_evaluations_and_predictions_are_complete(tmp_path: Path, jobs: Any) -> None:
    """In jobs that do nothing else, each record counts once and keeps its place."""
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "n.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(RECORDS)))
    said, output = tmp_path / "said.npz", tmp_path / "output"

    def start(verb: str, *flags: str) -> Job:
        words = [str(tmp_path / "echo.py"), "--data", str(tmp_path / "n.csv"), "--job-name", verb]
        command = [*EDL, verb, *words, *flags]
        job = Job(tmp_path, verb, command, "torch_edl.training.worker")
        return jobs.enter_context(contextlib.closing(job))

    trained = start("run", "--output", str(output))
    assert trained.finish() == 0, trained.report()
    rest = ["--from", str(output), "--workers", "2", "--records-per-task", "8"]
    evaluate = ("evaluate", "--strategy", "ps", "--summary", str(tmp_path / "e.json"))
    for verb, *flags in (evaluate, ("predict", "--output", str(said))):
        job = start(verb, *rest, *flags)
        for done in (100, 300):
            job.wait_for(lambda n=done, job=job: job.done() > n)
            job.kill_master()
        assert job.finish() == 0, job.report()
    summary = json.loads((tmp_path / "e.json").read_text())
    assert summary["records"] == RECORDS
    assert summary["metrics"]["mean"] == pytest.approx((RECORDS - 1) / 2)
    weights = load_file(output / "model.safetensors")
    expected = np.arange(RECORDS) * float(weights["weight"][0, 0]) + float(weights["bias"][0])
    assert np.allclose(np.load(said)["prediction"][:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # it takes as long as processes wait for a master
def test_nothing_outlives_client_and_master(start_job: Callable[..., Any]) -> None:
    job = start_job(RECORDS, *FLAGS)
    job.wait_for(lambda: job.done() > 0)
    left = [psutil.Process(pid) for pid in job.pids("worker") + job.pids("ps")]
    (master,) = job.pids("master")
    job.process.send_signal(signal.SIGSTOP)  # it must not see the end of its master
    os.kill(master, signal.SIGKILL)
    job.process.kill()
    job.process.wait()
    assert [p for p in left if p.is_running()], "nobody ends them"
    _, alive = psutil.wait_procs(left, timeout=HANG_S)
    assert not alive


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["checkpoint", "journal", "replica"])
def test_nobody_is_declared_lost(start_job: Callable[..., Any], durability: str) -> None:
    """By a master that was paused: nobody was silent to anybody who listened."""
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--heartbeat-timeout", "3"]
    job = start_job(RECORDS, *flags, "--durability", durability, delay_s=0.02)
    job.wait_for(lambda: job.done() > 100)
    before = set(job.pids("worker") + job.pids("ps"))
    job.pause_master(PAUSE_S)
    done = job.done()
    job.wait_for(lambda: job.done() > min(done + 50, RECORDS - 100))
    job.require_same_processes(before)
    job.check()


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["journal", "replica"])
@pytest.mark.parametrize("seed", range(1, 4))
def test_two_at_once(start_job: Callable[..., Any], durability: str, seed: int) -> None:
    """Masters, servers and workers are killed, or paused for shorter or longer than they may be
    silent, while others are: only with replicas may that lose the model, which has checkpoints."""
    chance = random.Random(f"{durability} {seed}")
    flags = ["--workers", "3", "--ps", "2", *TASKS, "--heartbeat-timeout", "4"]
    flags += ["--durability", durability, "--checkpoint-every", "40", "--checkpoint-dir", "DIR"]
    job = start_job(4 * RECORDS, *flags, "--staleness", chance.choice("02"))
    job.wait_for(lambda: job.done() > 100)
    wakes: list[threading.Timer] = []
    for _ in range(9):
        role = chance.choice(["worker", "ps", "master"])
        hurt, pause_s = chance.choice([signal.SIGKILL, signal.SIGSTOP]), chance.uniform(0.3, 7)
        if pids := job.pids(role):
            pid = chance.choice(pids)
            send(pid, hurt)
            if hurt == signal.SIGSTOP:
                wakes.append(threading.Timer(pause_s, send, (pid, signal.SIGCONT)))
                wakes[-1].start()
        time.sleep(chance.choice([0.05, 0.5, 1.5, 4]))
    for wake in wakes:
        wake.join()
    job.check(rolled_back=0 if durability == "journal" else None)


@needs_root
@pytest.mark.slow
def test_a_false_master_is_told_nothing_and_ends_nothing(
    start_job: Callable[..., ModelJob],
) -> None:
    """Another user of the machine takes the port of a master that was killed."""
    job = start_job(6_000, "--ps", "2", "--workers", "2")
    job.wait_for(lambda: job.done() > 200)
    where = json.loads((job.folder / "master.json").read_text())
    workers, servers = job.running("worker"), job.running("ps")
    os.kill(job.process.pid, signal.SIGSTOP)  # it would start the next master at once
    try:
        job.kill("master")
        with false_listener(split(where["address"])[1]) as received:
            job.wait_for(lambda: len(received) > 8)
    finally:
        os.kill(job.process.pid, signal.SIGCONT)
    told = b"".join(received)
    assert where["token"].encode() not in told
    assert b"torch_edl." not in told  # the name of a method: nothing was asked
    job.wait_for(lambda: job.running("worker") == workers)
    assert job.running("ps") == servers
    job.check()

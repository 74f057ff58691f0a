"""Processes of a script's job on parameter servers are killed; each record counts once all the
same.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

SCRIPT = Path(__file__).with_name("counting_on_servers.py")
RECORDS = 2000


class Job:
    """A running ``torch-edl run`` of the counting script."""

    def __init__(self, folder: Path, name: str, flags: list[str], records: int, delay_s: float):
        self.name = name
        self.told = folder / f"{name}-told"
        self.told.mkdir()
        self.log = folder / f"{name}.log"
        self.records = records
        self.env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable, "-m", "torch_edl.cli", "run", "--job-name", name, *flags, str(SCRIPT),
            str(self.told), "--records", str(records), "--epochs", "2", "--delay", str(delay_s),
        ]  # fmt: skip
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)
        self._stub: Stub | None = None

    def pids(self, what: str) -> list[int]:
        """Processes with that in their command line, found without asking the job."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ", "status"]):
            home = (process.info["environ"] or {}).get("TORCH_EDL_HOME")
            line = process.info["cmdline"] or []
            if (
                home == self.env["TORCH_EDL_HOME"]
                and process.info["status"] != "zombie"
                and process.pid != self.process.pid
                and any(word == what for word in line)
            ):
                found.append(process.pid)
        return found

    def kill(self, what: str) -> None:
        """SIGKILL to one of them."""
        os.kill(self.pids(what)[0], signal.SIGKILL)

    def status(self) -> pb.GetStatusResponse:
        """As the master tells; empty while there is none."""
        try:
            if self._stub is None:
                file = Path(self.env["TORCH_EDL_HOME"]) / "jobs" / self.name / "master.json"
                where = json.loads(file.read_text())
                service = pb.DESCRIPTOR.services_by_name["Master"]
                self._stub = Stub(service, where["address"], where["token"])
            status: pb.GetStatusResponse = self._stub.call(
                "GetStatus", pb.GetStatusRequest(), timeout_s=5
            )
            return status
        except (OSError, grpc.RpcError):
            return pb.GetStatusResponse()

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"it did not come about:\n{self.report()}")
            time.sleep(0.02)

    def finish(self, timeout_s: float = 100) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self.report()}")

    def report(self) -> str:
        logs = sorted((Path(self.env["TORCH_EDL_HOME"]) / "jobs" / self.name / "logs").glob("*"))
        return "\n".join(f"==== {f.name}\n{f.read_text()[-3000:]}" for f in [self.log, *logs])

    def check(self, workers: int) -> None:
        """Each record counts once in each epoch, as every worker sees it at the end."""
        ends = [json.loads(file.read_text()) for file in self.told.glob("counts-*.json")]
        assert sorted(end["rank"] for end in ends) == list(range(workers)), self.report()
        for end in ends:
            assert not end["wrong"], f"{end['wrong']}\n{self.report()}"
            assert end["total"] == [2 * self.records] * 3

    def close(self) -> None:
        """Nothing outlives its job."""
        if self._stub is not None:
            self._stub.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 15
        while left := [p for what in ("torch_edl.ps_server", "master", str(SCRIPT))
                       for p in self.pids(what)]:  # fmt: skip
            assert time.monotonic() < deadline, f"orphans {left}\n{self.report()}"
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``start(*flags)``; a flag DIR is a folder for checkpoints."""
    jobs: list[Job] = []

    def start_job(
        *flags: str, records: int = RECORDS, delay_s: float = 0.004, name: str = "count"
    ) -> Job:
        given = [str(tmp_path / "checkpoints") if flag == "DIR" else flag for flag in flags]
        jobs.append(Job(tmp_path, name, given, records, delay_s))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.close()


KEEP = ("--checkpoint-dir", "DIR", "--checkpoint-every", "50")


def test_a_worker_and_a_server_are_killed(start: Callable[..., Job]) -> None:
    """The tasks of the one go to others; all go back to the checkpoint with the other."""
    job = start("--ps", "2", "--workers", "2", *KEEP)
    job.wait_for(lambda: job.status().records_done > 300)
    job.kill(str(SCRIPT))
    job.wait_for(lambda: job.status().records_done > 1000 and job.status().checkpoint)
    job.kill("torch_edl.ps_server")
    assert job.finish() == 0, job.report()
    job.check(2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_workers_are_killed_at_random(start: Callable[..., Job], seed: int) -> None:
    chance = random.Random(seed)
    job = start("--strategy", "ps", "--workers", "3", delay_s=0.01)
    for _ in range(4):
        more = job.status().records_done + chance.randrange(100, 800)
        job.wait_for(lambda n=more: job.status().records_done > n)
        job.kill(str(SCRIPT))
    assert job.finish() == 0, job.report()
    job.check(3)


@pytest.mark.slow
def test_a_server_is_killed_without_checkpoints(start: Callable[..., Job]) -> None:
    """Everything begins again, and counts once."""
    job = start("--ps", "2", "--workers", "3")
    job.wait_for(lambda: job.status().records_done > 1000)
    job.kill("torch_edl.ps_server")
    job.wait_for(lambda: 0 < job.status().records_done < 1000)
    assert job.finish() == 0, job.report()
    job.check(3)


@pytest.mark.slow
def test_the_master_is_killed(start: Callable[..., Job]) -> None:
    """Its servers die with it; the job ends and says why, and goes on from its checkpoint."""
    first = start("--ps", "2", "--workers", "2", *KEEP, name="first")
    first.wait_for(lambda: first.status().checkpoint)
    first.kill("master")
    assert first.finish(60) == 1
    assert "the master was killed, and the parameter servers with it" in first.log.read_text()
    assert not list(first.told.glob("counts-*"))
    second = start("--ps", "3", "--workers", "2", *KEEP, "--resume", name="second")
    assert second.finish() == 0, second.report()
    second.check(2)


@pytest.mark.slow
def test_a_stopped_job_goes_on_with_other_servers_and_workers(start: Callable[..., Job]) -> None:
    first = start("--ps", "2", "--workers", "2", *KEEP, name="first")
    first.wait_for(lambda: first.status().checkpoint)
    first.process.send_signal(signal.SIGINT)
    assert first.finish(60) == 130
    second = start("--strategy", "ps", "--workers", "1", *KEEP, "--resume", name="second")
    assert second.finish() == 0, second.report()
    second.check(1)

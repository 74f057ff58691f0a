"""A model file on several machines without a cluster: network namespaces with a host name each. The
link of a machine goes down with a server and two workers on it; a machine joins later; one leaves.
Every record is counted exactly once."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import TASKS, Job, ModelJob
from tests.faults.ring.network import Switch
from tests.faults.ring_jobs import RingJob
from tests.place import EDL
from torch_edl.wire.endpoint import free_port

# Minibatches of 8 take 0.3 s until the data go on: the records last for more than half a minute.
RECORDS, DELAY_S = 6000, 0.3
RING = Path(__file__).with_name("counting_ring_model.py")
TIMEOUT = ["--heartbeat-timeout", "5"]


class Machines:
    """Machines beside the one of the job: two that are connected by a switch, and more of them."""

    def __init__(self, folder: Path, switch: Switch) -> None:
        self.switch, self._folder = switch, folder
        self.endpoint = f"{switch.here}:{free_port()}"
        self.joined: dict[int, subprocess.Popen[bytes]] = {}

    def run(self, machine: int, words: list[str]) -> subprocess.Popen[bytes]:
        """Run a command on a machine, which has no folder of jobs in common with the others."""
        env = {**os.environ, "TORCH_EDL_HOME": str(self._folder / "home" / f"machine-{machine}")}
        with open(self.log(machine), "ab") as log:
            command = self.switch.command(machine, words)
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.joined[machine] = process
        return process

    def join(self, machine: int) -> subprocess.Popen[bytes]:
        return self.run(machine, [*EDL, "join", self.endpoint])

    def log(self, machine: int) -> Path:
        return self._folder / f"machine-{machine}.log"

    def close(self) -> None:
        for process in self.joined.values():
            process.kill()
            process.wait()


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    if reason := Switch.why_not():
        needed = os.environ.get("CI") and os.geteuid() == 0
        pytest.fail(reason) if needed else pytest.skip(reason)
    monkeypatch.setenv("TORCH_EDL_TOKEN", secrets.token_urlsafe(32))
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(contextlib.closing(Switch(3)))
        yield stack.enter_context(contextlib.closing(Machines(tmp_path, switch)))


def where(job: Job, role: str) -> list[str]:
    """The machines of the processes that run; this one is empty."""
    found = job.status().processes
    return sorted(p.node for p in found if p.role == role and p.state == "running")


def events(job: Job) -> str:
    return "\n".join(event.text for event in job.status().events)


@pytest.mark.timeout(400)
def test_a_machine_whose_link_goes_down_and_one_that_joins_later(
    machines: Machines, start_job: Callable[..., ModelJob]
) -> None:
    flags = ["--workers", "2:6", "--ps", "3", "--durability", "replica", "--nnodes", "3"]
    flags += ["--rdzv-endpoint", machines.endpoint, *TIMEOUT, *TASKS]
    job = start_job(RECORDS, *flags, delay_s=DELAY_S)
    machines.join(0)
    machines.join(1)
    kept = lambda: sum(p.kept for p in job.status().processes)  # noqa: E731
    job.wait_for(lambda: job.done() > 200 and len(where(job, "worker")) == 6 and kept() == 3)
    assert where(job, "ps") == ["", "machine-0", "machine-1"], job.report()
    assert where(job, "worker") == ["", "", *["machine-0"] * 2, *["machine-1"] * 2], job.report()
    machines.switch.cut(0)
    job.wait_for(lambda: "machine machine-0 is lost" in events(job))
    job.wait_for(lambda: len(where(job, "ps")) == 3 and kept() == 3)
    assert "machine-0" not in where(job, "ps"), job.report()
    before = job.done()
    job.wait_for(lambda: job.done() > before + 100)
    machines.join(2)
    job.wait_for(lambda: where(job, "worker").count("machine-2") == 2)
    machines.switch.mend(0)  # it finds out that it is lost, and ends
    job.wait_for(lambda: machines.joined[0].poll() is not None)
    assert "declared lost" in machines.log(0).read_text()
    job.check(rolled_back=0)
    assert [machines.joined[n].wait() for n in (1, 2)] == [0, 0], job.report()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_command_on_each_machine_and_the_master_is_killed(
    machines: Machines, start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    flags = ["--nnodes", "2", "--nproc-per-node", "2", "--strategy", "ps"]
    flags += ["--rdzv-endpoint", machines.endpoint, *TASKS]
    job = start_job(RECORDS, *flags, delay_s=DELAY_S)
    words = psutil.Process(job.process.pid).cmdline()
    other = machines.run(0, words)
    job.wait_for(lambda: job.done() > 200 and where(job, "worker") == ["", "", *["machine-0"] * 2])
    job.kill_master()
    before = job.done()
    job.wait_for(lambda: job.done() > before + 200)
    assert where(job, "worker") == ["", "", *["machine-0"] * 2], job.report()
    job.check(rolled_back=0)
    assert other.wait() == 0, job.report()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_ring_over_two_machines_of_which_one_leaves(machines: Machines, tmp_path: Path) -> None:
    flags = ["--nnodes", "1:2", "--rdzv-endpoint", machines.endpoint]
    with contextlib.closing(RingJob(tmp_path, RING, *flags)) as job:
        other = machines.join(0)
        job.trains()
        assert where(job, "worker") == ["", "machine-0"], job.report()
        other.send_signal(signal.SIGINT)
        job.wait_for(lambda: other.poll() is not None)
        assert other.returncode == 130
        job.wait_for(lambda: where(job, "worker") == [""])
        assert "machine machine-0 has left" in events(job)
        before = job.done()
        job.wait_for(lambda: job.done() > before + 16)
        job.check()

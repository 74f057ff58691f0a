"""A master is paused for longer than its lock lives, another one takes the job over, and the first
one wakes up: it leases nothing, touches no process, and ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import grpc
import psutil
import pytest

from tests.etcd_server import Etcd
from tests.faults.conftest import ModelJob
from tests.waiting import HANG_S
from torch_edl.launch.jobs.master_process import SUPERSEDED
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

RECORDS = 500
FLAGS = ["--workers", "1", "--ps", "1", "--batch-size", "8", "--records-per-task", "32"]
# So soon the second master, whom the workers do not know, has replaced them.
FLAGS += ["--heartbeat-timeout", "3", "--durability", "journal"]


class Asking(threading.Thread):
    """Asks a master that is paused for leases, and tells what the master answers."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__()
        self._stub = Stub(services.MASTER, address, token)
        self.leases: list[pb.LeaseMessage] = []
        self.start()

    def run(self) -> None:
        with contextlib.closing(self._stub), contextlib.suppress(grpc.RpcError):
            self.leases.extend(self._stub.call(pb.LeaseRequest(want=4), timeout_s=HANG_S).leases)


def address_of(job: ModelJob) -> tuple[str, str]:
    """Return the address of the newest master, and the token of the job."""
    noted = json.loads((job.folder / "master.json").read_text())
    return noted["address"], noted["token"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    ["sqlite", "etcd"],  # the lock lives for 3 s in the one, and for 15 s in the other
)
def test_it_leases_nothing_when_it_wakes_up(
    start_job: Callable[..., ModelJob], request: pytest.FixtureRequest, kept: str
) -> None:
    store = []
    if kept == "etcd":
        etcd: Etcd = request.getfixturevalue("etcd")
        store = ["--store", f"etcd://{etcd.endpoint}"]
    job = start_job(RECORDS, *FLAGS, *store, delay_s=0.05)
    job.wait_for(lambda: job.done() > 50)
    (master,) = map(psutil.Process, job.pids("master"))
    where = address_of(job)
    master.suspend()
    asking = Asking(*where)
    # As another machine would do that has the same address.
    words = [sys.executable, "-m", "master", "--job", job.name, "--listen", "127.0.0.1:0"]
    with open(job.log.with_name("second.log"), "w") as log:
        second = subprocess.Popen(words, env=master.environ(), stdout=log, stderr=log)
    try:
        job.wait_for(lambda: address_of(job) != where)
        with contextlib.closing(Stub(services.MASTER, *address_of(job))) as successor:
            theirs = set(job.pids("worker") + job.pids("ps"))
            master.resume()
            # The client of the first master ends with it, and leaves the processes to the second.
            assert job.finish() == 1
            assert f"exit code {SUPERSEDED}" in job.log.read_text()
            assert theirs & set(job.pids("worker") + job.pids("ps")), job.report()
            asking.join(HANG_S)
            assert not asking.leases
            job.go_on()
            while second.poll() is None:  # it waits until somebody has seen the end
                with contextlib.suppress(grpc.RpcError):
                    successor.call(pb.GetStatusRequest(), timeout_s=HANG_S)
                time.sleep(0.1)
    finally:
        second.kill()
        second.wait()
    assert second.returncode == 0, job.report()
    job.check_counts()

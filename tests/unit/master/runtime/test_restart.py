"""A real master of a script, killed and started again: workers find it, and their ring."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.waiting import HANG_S, wait_for
from torch_edl.config import ClusterConfig, JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

TOKEN = "secret"


class ScriptMaster:
    """The process, and where it is."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "jobs" / "j"
        self.folder.mkdir(parents=True)
        config = JobConfig(
            name="j",
            kind="script",
            model_file="/train.py",
            cluster=ClusterConfig(min_workers=2, max_workers=3, heartbeat_timeout_s=HANG_S),
        )
        (self.folder / "job.json").write_text(config.to_json())
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the disk of the folder may be full
        self.env = {**os.environ, "TORCH_EDL_HOME": str(home), "TORCH_EDL_TOKEN": TOKEN}
        self.start()

    def start(self, token: str = TOKEN) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "master", "--job", "j"],
            env={**self.env, "TORCH_EDL_TOKEN": token},
            stderr=self._log,
        )
        wait_for(lambda: self.found().get("pid") == self.process.pid, "master.json")

    def found(self) -> dict[str, object]:
        try:
            return dict(json.loads((self.folder / "master.json").read_text()))
        except FileNotFoundError:
            return {}

    def said(self) -> str:
        """The logs of all masters."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stub(self, token: str = TOKEN) -> Stub:
        return Stub(services.MASTER, str(self.found()["address"]), token)


class Worker:
    """Asks into rings, however long the master is away."""

    def __init__(self, stub: Stub, local_rank: int) -> None:
        request = pb.RegisterRequest(
            worker_id=-1, pid=11 + local_rank, host="h", node="n", local_rank=local_rank
        )
        self.id = stub.call(request, timeout_s=HANG_S).worker_id
        self.ring = 0
        self._insist = functools.partial(stub.insist, timeout_s=HANG_S, away_s=HANG_S)

    def beat(self) -> pb.HeartbeatResponse:
        return self._insist(pb.HeartbeatRequest(worker_id=self.id, ring=self.ring))

    def wish(self, step: int) -> pb.JoinRingRequest:
        return pb.JoinRingRequest(worker_id=self.id, ring=self.ring, store=f"s{self.id}", step=step)

    def join(self, step: int, *, members: int = 2) -> pb.Ring:
        """Ask, and again whenever somebody waits, until a ring has so many members."""
        while True:
            answer = self._insist(self.wish(step), until=lambda answer: answer.HasField("ring"))
            self.ring = answer.ring.number
            if len(answer.ring.workers) == members:
                return answer.ring
            wait_for(lambda: self.beat().stale_ring >= self.ring, "that somebody waits")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[ScriptMaster]:
    made = ScriptMaster(tmp_path)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.kill()


def test_the_ring_outlives_the_master(master: ScriptMaster) -> None:
    with contextlib.closing(master.stub()) as stub, ThreadPoolExecutor(3) as pool:
        workers = [Worker(stub, rank) for rank in (0, 1)]
        rings = list(pool.map(lambda worker: worker.join(-1), workers))
        assert [list(ring.workers) for ring in rings] == [[0, 1], [0, 1]]
        stub.call(pb.ReportCheckpointRequest(worker_id=0, directory="/c/1"), timeout_s=HANG_S)

        where = master.found()["address"]
        master.kill()
        master.start()
        assert master.found()["address"] == where
        heard = [worker.beat() for worker in workers]
        assert [(h.known, h.broken_ring, h.stale_ring) for h in heard] == [(True, 0, 0)] * 2
        workers[1].ring = 0
        assert workers[1].join(-1) == rings[1], "an answer that was lost with the master"

        # A third one comes while there is no master: it is in the next ring with the others.
        workers.append(Worker(stub, 2))
        assert workers[2].id == 2
        joined = pool.submit(workers[2].join, -1, members=3)
        wait_for(lambda: workers[0].beat().stale_ring == 1, "that the ring is to change")
        master.kill()
        others = [pool.submit(worker.join, 7, members=3) for worker in workers[:2]]
        master.start()
        rings = [each.result() for each in (*others, joined)]
        assert rings == [rings[0]] * 3
        assert list(rings[0].workers) == [0, 1, 2]
        assert (rings[0].source, rings[0].heal, rings[0].fresh) == (0, True, False)

        status = stub.call(pb.GetStatusRequest(), timeout_s=HANG_S)
        assert (status.state, status.checkpoint) == ("running", "/c/1")
        for worker in workers:
            leave = pb.LeaveRingRequest(worker_id=worker.id, finished=True)
            stub.call(leave, timeout_s=HANG_S)
        assert master.process.wait(HANG_S) == 0


def test_it_listens_where_it_is_told(master: ScriptMaster) -> None:
    address = str(master.found()["address"])
    assert address.startswith("127.0.0.1:"), "loopback, unless it is told otherwise"
    taken = [sys.executable, "-m", "master", "--job", "k", "--listen", address]
    other = master.folder.parent / "k"
    other.mkdir()
    config = JobConfig(name="k", kind="script", model_file="/train.py")
    (other / "job.json").write_text(config.to_json())
    ended = subprocess.run(taken, env=master.env, capture_output=True, text=True, timeout=HANG_S)
    assert ended.returncode == 2
    assert f"{address}: cannot listen there" in ended.stderr
    master.kill()
    with subprocess.Popen(taken, env=master.env, stderr=subprocess.DEVNULL) as process:
        wait_for((other / "master.json").exists, "master.json")
        assert json.loads((other / "master.json").read_text())["address"] == address
        process.terminate()
        assert process.wait(HANG_S) == 128 + signal.SIGTERM


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 2 MB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here: that takes root")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(disk: Path) -> Path:
    """Leaves no room on a disk; the file that takes it."""
    rest = disk / "rest"
    with contextlib.suppress(OSError), open(rest, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return rest


def test_a_full_disk_below_the_job_is_waited_through(small_disk: Path) -> None:
    master = ScriptMaster(small_disk)
    try:
        with contextlib.closing(master.stub()) as stub, ThreadPoolExecutor() as pool:
            asks = [Worker(stub, rank).wish(-1) for rank in range(2)]
            rest = fill(small_disk)
            with pytest.raises(grpc.RpcError, match=r"state\.sqlite: database or disk is full"):
                [a.result() for a in [pool.submit(stub.call, a, timeout_s=HANG_S) for a in asks]]
            waiting = [pool.submit(stub.insist, ask, timeout_s=HANG_S) for ask in asks]
            status = stub.call(pb.GetStatusRequest(), timeout_s=HANG_S)
            (said,) = (event.text for event in status.events if event.level == "warning")
            assert "disk is full; training continues; no process joins or starts until" in said
            rest.unlink()
            assert [len(answer.result().ring.workers) for answer in waiting] == [2, 2]
            fill(small_disk)
            # One that continues waits, too; it does not end its job.
            master.kill()
            again = pool.submit(master.start)
            wait_for(lambda: "waiting until there is room" in master.said(), master.said)
            assert master.process.poll() is None
            rest.unlink()
            again.result()
    finally:
        master.kill()


def test_a_job_that_has_no_room_to_begin(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(small_disk))
    fill(small_disk)
    job = JobFolder("j")
    says = "No space left on device: a job keeps its state and its logs there; make room, or set"
    with pytest.raises(UsageError, match=says):
        folder.create(JobConfig(name="j", model_file="/model.py"))
    assert not job.dir.exists()

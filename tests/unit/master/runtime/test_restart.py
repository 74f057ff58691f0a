"""A real master of a script, killed and started again: workers find it, and their ring."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    """Registers, beats ten times a second, and asks into rings."""

    def __init__(self, stub: Stub, local_rank: int, pid: int) -> None:
        self.stub = stub
        registered = stub.call(
            pb.RegisterRequest(worker_id=-1, pid=pid, host="h", node="n", local_rank=local_rank),
            timeout_s=HANG_S,
        )
        self.id = registered.worker_id
        self.ring = 0
        self.heard = pb.HeartbeatResponse(known=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(0.1):
            request = pb.HeartbeatRequest(worker_id=self.id, ring=self.ring)
            try:
                self.heard = self.stub.call(request, timeout_s=1)
            except grpc.RpcError:
                continue  # the master is away: the ring does not depend on it

    def join(self, step: int) -> pb.JoinRingResponse:
        end = time.monotonic() + HANG_S
        request = pb.JoinRingRequest(
            worker_id=self.id, ring=self.ring, store=f"s{self.id}", step=step
        )
        while time.monotonic() < end:
            try:
                answer = self.stub.call(request, timeout_s=HANG_S)
            except grpc.RpcError:
                time.sleep(0.05)  # the master is away
                continue
            if answer.HasField("ring") or answer.leave:
                self.ring = answer.ring.number
                return answer  # type: ignore[no-any-return]
        raise AssertionError("no ring")

    def join_three(self, step: int) -> pb.JoinRingResponse:
        """Asks again whenever somebody waits, until all three are in."""
        while len((answer := self.join(step)).ring.workers) < 3:
            wait_for(lambda: self.heard.stale_ring >= self.ring, "that somebody waits")
        return answer

    def leave(self) -> None:
        request = pb.LeaveRingRequest(worker_id=self.id, finished=True)
        self.stub.call(request, timeout_s=HANG_S)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[ScriptMaster]:
    made = ScriptMaster(tmp_path)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.kill()


def test_the_ring_outlives_the_master(master: ScriptMaster) -> None:
    stub = master.stub()
    workers = [Worker(stub, 0, 11), Worker(stub, 1, 12)]
    try:
        with ThreadPoolExecutor(3) as pool:
            rings = list(pool.map(lambda w: w.join(-1), workers))
            assert [list(r.ring.workers) for r in rings] == [[0, 1], [0, 1]]
            written = pb.ReportCheckpointRequest(worker_id=0, directory="/c/1")
            stub.call(written, timeout_s=HANG_S)

            where = master.found()["address"]
            master.kill()
            master.start()
            assert master.found()["address"] == where

            for worker in workers:
                worker.heard = pb.HeartbeatResponse()
            wait_for(lambda: all(w.heard.known for w in workers), "heartbeats again")
            assert [(w.heard.broken_ring, w.heard.stale_ring) for w in workers] == [(0, 0)] * 2
            workers[1].ring = 0
            assert workers[1].join(-1) == rings[1], "an answer that was lost with the master"

            # A third one comes while there is no master: it is in the next ring with the others.
            workers.append(Worker(stub, 2, 13))
            assert workers[2].id == 2
            joined: Future[pb.JoinRingResponse] = pool.submit(workers[2].join, -1)
            wait_for(lambda: workers[0].heard.stale_ring == 1, "that the ring is to change")
            master.kill()
            others = [pool.submit(w.join_three, 7) for w in workers[:2]]
            master.start()
            answers = [f.result() for f in (*others, joined)]
            rings = [a.ring for a in answers]
            assert {tuple(r.workers) for r in rings} == {(0, 1, 2)}
            assert {(r.source, r.heal, r.fresh) for r in rings} == {(0, True, False)}
            assert len({r.number for r in rings}) == 1

        status = stub.call(pb.GetStatusRequest(), timeout_s=HANG_S)
        assert (status.state, status.checkpoint) == ("running", "/c/1")
        for worker in workers:
            worker.leave()
        assert master.process.wait(HANG_S) == 0
    finally:
        for worker in workers:
            worker.close()
        stub.close()


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
    stub, pool = master.stub(), ThreadPoolExecutor()
    workers: list[Worker] = []
    try:
        workers += [Worker(stub, rank, pid=100 + rank) for rank in range(2)]
        rest = fill(small_disk)
        asks = [
            pb.JoinRingRequest(worker_id=w.id, ring=0, store=f"s{w.id}", step=-1) for w in workers
        ]
        with pytest.raises(grpc.RpcError, match=r"state\.sqlite: database or disk is full"):
            [a.result() for a in [pool.submit(stub.call, a, timeout_s=HANG_S) for a in asks]]
        waiting = [pool.submit(stub.insist, ask, timeout_s=HANG_S) for ask in asks]
        status = stub.call(pb.GetStatusRequest(), timeout_s=HANG_S)
        said = [event.text for event in status.events if event.level == "warning"]
        assert len(said) == 1
        assert "disk is full; training continues; no process joins or starts until" in said[0]
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
        for worker in workers:
            worker.close()


def test_a_job_that_has_no_room_to_begin(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(small_disk))
    fill(small_disk)
    job = JobFolder("j")
    says = "No space left on device: a job keeps its state and its logs there; make room, or set"
    with pytest.raises(UsageError, match=says):
        folder.create(JobConfig(name="j", model_file="/model.py"))
    assert not job.dir.exists()

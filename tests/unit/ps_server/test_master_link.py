"""Servers and their master: processes that keep copies for each other, are killed, paused and
replaced."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.unit.ps_server.conftest import TOKEN, Server, launch
from tests.waiting import HANG_S
from torch_edl.config.environment import ENV_MASTER
from torch_edl.wire import master_pb2, services
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.server import serve

DENSE = {"b": np.zeros(3, np.float32), "w": np.ones((20, 5), np.float32)}


class Master:
    """Starts servers, and answers them as the master of the job would."""

    def __init__(self, folder: Path, shards: int, args: tuple[str, ...]) -> None:
        self._folder, self.shards, self._args = folder, shards, args
        self._changed = threading.Condition()
        self._made = 0
        self.current: dict[int, int] = {}
        self.addresses: dict[int, str] = {}  # by incarnation
        self.endpoints: dict[int, str] = {}
        self.keepers: dict[int, int] = {}  # of the server's copy, by incarnation
        self.lost: dict[int, str] = {}
        self.problems: list[str] = []
        self.loads: dict[int, tuple[int, int]] = {}  # updates and rows, by incarnation
        self._started: list[Server] = []
        handlers: dict[str, Any] = {
            "RegisterServer": self._register,
            "ServerHeartbeat": self._heartbeat,
            "GetCluster": lambda r, c: master_pb2.GetClusterResponse(),
        }
        self._server, port = serve(
            services.SERVERS, handlers, address="127.0.0.1:0", token=TOKEN, threads=8
        )
        self._address = f"127.0.0.1:{port}"

    def _register(self, request: Any, _: Any) -> Any:
        with self._changed:
            if request.lost:
                self.lost[request.incarnation] = request.lost
            else:
                self.addresses[request.incarnation] = request.address
                self.endpoints[request.incarnation] = request.data_plane
            self._changed.notify_all()
        return master_pb2.RegisterServerResponse()

    def _heartbeat(self, request: Any, _: Any) -> Any:
        with self._changed:
            known = self.current.get(request.shard) == request.incarnation
            self.keepers[request.incarnation] = request.keeper
            self.problems.append(request.problem)
            if request.rows:
                assert request.bytes >= 4 * 4 * request.rows  # each has four numbers of 4 bytes
                self.loads[request.incarnation] = request.version, request.rows
            self._changed.notify_all()
            answer = master_pb2.ServerHeartbeatResponse(known=known, noted=request.note)
            peer = self.current.get((request.shard + 1) % self.shards, 0)
            if peer in self.addresses:
                answer.peer.address, answer.peer.incarnation = self.addresses[peer], peer
                answer.peer.data_plane = self.endpoints[peer]
            return answer

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, HANG_S)

    def launch(self, shard: int, *, successor: bool = False) -> int:
        """Starts the next server of a shard; returns its incarnation."""
        with self._changed:
            self._made += 1
            incarnation = self.current[shard] = self._made
        home = self._folder / f"machine-{incarnation}"
        home.mkdir()
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed below)
        words = [f"--shard={shard}", f"--shards={self.shards}", f"--incarnation={incarnation}"]
        words += ["--job=job", *(["--successor"] if successor else []), *self._args]
        env = {ENV_MASTER: self._address, "TMPDIR": str(home)}
        process = launch(*words, env=env, stderr=log)
        server = Server(process, log, "127.0.0.1:1", shard, self.shards, endpoint="")
        server.fence = pb.Fence(job="job", incarnation=incarnation)
        self._started.append(server)
        return incarnation

    def listening(self, incarnation: int) -> Server:
        """The server of that incarnation, when it listens."""
        self.wait(lambda: incarnation in self.addresses)
        server = next(s for s in self._started if s.fence.incarnation == incarnation)
        server.close()
        server.address = self.addresses[incarnation]
        server.endpoint = self.endpoints[incarnation]
        server.__post_init__()
        return server

    def process(self, incarnation: int) -> subprocess.Popen[str]:
        return next(s.process for s in self._started if s.fence.incarnation == incarnation)

    def start(self, shard: int, *, successor: bool = False) -> Server:
        return self.listening(self.launch(shard, successor=successor))

    def start_all(self) -> list[Server]:
        numbers = [self.launch(shard) for shard in range(self.shards)]
        return [self.listening(number) for number in numbers]

    def kill(self, server: Server) -> None:
        """The machine is gone, with its disk."""
        server.process.kill()
        server.process.wait()
        with self._changed:
            del self.current[server.shard]
            del self.addresses[server.fence.incarnation]
        shutil.rmtree(self._folder / f"machine-{server.fence.incarnation}")

    def replace(self, server: Server) -> Server:
        self.kill(server)
        return self.start(server.shard, successor=True)

    def wait_kept(self, server: Server) -> None:
        """Until the server that has the next shard now has a copy."""
        peer = (server.shard + 1) % self.shards
        self.wait(lambda: self.keepers.get(server.fence.incarnation) == self.current[peer])

    def close(self) -> None:
        for server in self._started:
            server.close()
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGCONT)
                server.process.kill()
            server.process.wait()
            server.log.close()
        self._server.stop(None).wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Master]]:
    made: list[Master] = []

    def begin(shards: int, *args: str) -> Master:
        folder = tmp_path / f"job-{len(made)}"
        folder.mkdir()
        made.append(Master(folder, shards, args or ("--replica",)))
        return made[-1]

    yield begin
    for master in made:
        master.close()


def initialize(server: Server, **more: Any) -> None:
    normal = pb.Initializer(kind="normal", args={"std": 1.0})
    server.initialize(DENSE, {"t": 4}, kind="adam", initializer=normal, **more)


def push(server: Server, number: int, **more: Any) -> pb.PushGradientsResponse:
    """Push `number` of a task, the same each time that it is made."""
    rng = np.random.default_rng(number)
    ids = np.unique(rng.integers(-50, 50, 20))
    rows = rng.standard_normal((len(ids), 4), dtype=np.float32)
    dense = rng.standard_normal(sum(v.size for v in DENSE.values()), dtype=np.float32)
    if server.shards > 1:
        dense = dense[: len(server.dense())]
    return server.push(0, number, number + 1, dense=dense, rows={"t": (ids, rows)}, **more)


def state(server: Server) -> tuple[bytes, bytes, int]:
    rows = server.pull("t", np.arange(-50, 50))
    return rows.tobytes(), server.dense().tobytes(), server.status().version


class Pusher(threading.Thread):
    """Pushes one after the other until a call fails."""

    def __init__(self, server: Server, first: int, last: int) -> None:
        super().__init__()
        self._server, self._range = server, range(first, last)
        self.acknowledged = first
        self.progress = threading.Event()
        self.start()

    def run(self) -> None:
        for number in self._range:
            try:
                push(self._server, number)
            except (grpc.RpcError, ValueError):
                return
            self.acknowledged = number + 1
            self.progress.set()


def test_a_killed_owner_has_all_that_it_acknowledged(job: Callable[..., Master]) -> None:
    """At random moments, several times, with the disks of the dead machines."""
    rng = random.Random(7)
    master = job(2)
    owner, peer = master.start_all()
    for server in (owner, peer):
        initialize(server)
    done = 0
    for _ in range(4):
        master.wait_kept(peer)
        pusher = Pusher(owner, done, done + 10_000)
        pusher.progress.wait(HANG_S)
        pusher.join(rng.random() * 0.5)
        owner.process.kill()
        pusher.join(HANG_S)
        acknowledged = pusher.acknowledged
        owner = master.replace(owner)
        offset = owner.call(pb.GetWatermarksRequest(fence=owner.fence, task_ids=[0])).offsets[0]
        assert offset in (acknowledged, acknowledged + 1)
        assert owner.status().version == offset
        assert not push(owner, offset).duplicate
        assert push(owner, offset).duplicate
        done = offset + 1
    plain = job(2)
    twin, other = plain.start_all()
    for server in (twin, other):
        initialize(server)
    for number in range(done):
        push(twin, number)
    assert state(owner) == state(twin)


def test_a_server_tells_its_updates_and_rows(job: Callable[..., Master]) -> None:
    master = job(1, "--mode", "async")
    (server,) = master.start_all()
    initialize(server)
    push(server, 0)
    rows = len(np.unique(np.random.default_rng(0).integers(-50, 50, 20)))
    master.wait(lambda: master.loads.get(server.fence.incarnation) == (1, rows))


def test_a_paused_owner_acknowledges_nothing_and_ends(job: Callable[..., Master]) -> None:
    master = job(3)
    servers = master.start_all()
    for server in servers:
        initialize(server)
    owner = servers[0]
    push(owner, 0)
    owner.process.send_signal(signal.SIGSTOP)
    pusher = Pusher(owner, 1, 2)
    with master._changed:
        del master.addresses[owner.fence.incarnation]
    successor = master.start(0, successor=True)
    assert not push(successor, 1).duplicate
    owner.process.send_signal(signal.SIGCONT)
    assert owner.process.wait(HANG_S) != 0
    pusher.join(HANG_S)
    assert pusher.acknowledged == 1
    push(successor, 2)
    master.wait_kept(successor)
    expected = state(successor)
    assert state(master.replace(successor)) == expected


def test_a_successor_that_finds_nobody_ends_when_it_is_asked_to(job: Callable[..., Master]) -> None:
    """Its peer hangs, and nobody has said yet that the peer is lost."""
    master = job(2)
    owner, peer = master.start_all()
    for server in (owner, peer):
        initialize(server)
    push(owner, 0)
    peer.process.send_signal(signal.SIGSTOP)
    master.kill(owner)
    number = master.launch(0, successor=True)
    master.wait(lambda: number in master.keepers)  # its first heartbeat
    successor = master.process(number)
    successor.send_signal(signal.SIGTERM)
    assert successor.wait(HANG_S) == 128 + signal.SIGTERM
    assert not master.lost


def test_a_server_that_was_replaced_ends(job: Callable[..., Master]) -> None:
    master = job(2)
    server = master.start(1)
    with master._changed:
        master.current[1] += 1
    assert server.process.wait(HANG_S) == 1
    server.log.seek(0)
    assert "another server has shard 1: this one was replaced and ends" in server.log.read()


def test_what_keeps_a_server_from_starting_is_told(
    job: Callable[..., Master], tmp_path: Path
) -> None:
    (tmp_path / "journal").write_text("a file")
    master = job(2, f"--journal={tmp_path / 'journal'}")
    number = master.launch(1)
    master.wait(lambda: any("journal" in problem for problem in master.problems))
    assert master.process(number).wait(HANG_S) == 1
    assert number not in master.addresses

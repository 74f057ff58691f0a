"""A peer that keeps the log of a shard, its owners, and what a master does for both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from tests.waiting import HANG_S
from torch_edl.errors import StaleIncarnationError
from torch_edl.ps_server.durability import peer as peers
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.keeper import ReplicaKeeper
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.records import Kind, LogEntry
from torch_edl.wire import cluster_pb2, pserver_pb2, services
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.server import Answer, DataServer, Later, WouldWaitError
from torch_edl.wire.server import serve

TOKEN = "t"
MINE = JournalIdentity(job="job", shard=0, shards=2, model=1)


class Peer:
    """The keeper of shard 0, in a server of its own."""

    def __init__(self, folder: Path, incarnation: int) -> None:
        folder.mkdir()
        self.keeper = ReplicaKeeper(folder, "job", 1, 2)
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        fence = pserver_pb2.Fence(job="job", incarnation=incarnation)

        def guarded(name: str, answer: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
            def handle(request: Any, _: grpc.ServicerContext) -> Any:
                if request.fence != fence:
                    raise StaleIncarnationError("another peer")
                assert self.gate.wait(HANG_S)
                self.calls.append(name)
                return answer(request)

            return handle

        def framed(name: str, answer: Answer) -> Answer:
            def handle(given: Framed, may_wait: bool) -> Framed | Later:
                if given.message.fence != fence:
                    raise StaleIncarnationError("another peer")
                if not may_wait and not self.gate.is_set():
                    raise WouldWaitError
                assert self.gate.wait(HANG_S)
                made = answer(given, may_wait)
                self.calls.append(name)
                return made

            return handle

        handlers = {n: guarded(n, a) for n, a in self.keeper.answers().items()}
        self._server, port = serve(
            services.REPLICAS, handlers, address="127.0.0.1:0", token=TOKEN, threads=8
        )
        self.server = cluster_pb2.Server(address=f"127.0.0.1:{port}", incarnation=incarnation)
        answers = {n: framed(n, a) for n, a in self.keeper.data_answers().items()}
        self.data = DataServer(answers, endpoint=f"ipc://{folder}.data", token=TOKEN, threads=8)
        self.server.data_plane = self.data.endpoint

    def die(self) -> None:
        self.gate.set()
        self.data.close()
        self._server.stop(None).wait()


class Owner(ChangeLog):
    """The log of a server, which begins or takes over at a call of the test."""

    def __init__(self, place: peers.Peer) -> None:
        self.place: peers.Peer = place

    def begin(self) -> None:
        super().__init__(self.place)

    def take_over(self) -> None:
        self.place._is_successor = True
        self.begin()


class Job:
    """Starts peers and owners, and plays the master."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._logs: list[Owner] = []
        self._peers: list[Peer] = []

    def peer(self) -> Peer:
        self._made += 1
        self._peers.append(Peer(self._folder / f"peer-{self._made}", self._made))
        return self._peers[-1]

    def owner(self, **more: Any) -> Owner:
        self._made += 1
        folder = self._folder / f"owner-{self._made}"
        folder.mkdir()
        place = peers.Peer(MINE, self._made, token=TOKEN, folder=folder, patience_s=0, **more)
        self._logs.append(Owner(place))
        return self._logs[-1]

    def first(self, peer: Peer | None, **more: Any) -> Owner:
        log = self.owner(**more)
        log.begin()
        assert not list(log.records())
        beat(log, peer)
        return log

    def settled(self, **more: Any) -> tuple[Owner, Peer]:
        """A first server, and the peer that keeps its log, as the master knows."""
        peer = self.peer()
        log = self.first(peer, **more)
        settle(log, peer)
        return log, peer

    def close(self) -> None:
        for log in self._logs:
            log.close()
        for peer in self._peers:
            peer.die()


def beat(log: Owner, peer: Peer | None) -> None:
    """A heartbeat and its answer."""
    log.place.heard(None if peer is None else peer.server, log.place.note()[0])


def settle(log: Owner, peer: Peer | None) -> None:
    """Heartbeats until the peer has everything, and the master knows."""
    place = log.place
    while True:
        beat(log, peer)
        with place._condition:
            done = place._condition.wait_for(lambda: place._complete or place.needs_base, 0.05)
        if done:
            break
    beat(log, peer)


def until(log: Owner, condition: Callable[[], bool]) -> None:
    with log.place._condition:
        assert log.place._condition.wait_for(condition, HANG_S)


def push(log: Owner, *payloads: bytes) -> None:
    for payload in payloads:
        log.append(LogEntry.of(Kind.GRADIENTS, payload))
        log.wait_durable()


def pushing(log: Owner, *payloads: bytes) -> threading.Thread:
    """Pushes in a thread, which must not end before the caller permits it."""
    thread = threading.Thread(target=push, args=(log, *payloads))
    thread.start()
    return thread


def snapshot(log: Owner, content: dict[str, bytes]) -> None:
    sequence = log.rotate()
    with log.place.new_base() as folder:
        for name, value in content.items():
            (folder / name).write_bytes(value)
        log.commit_snapshot(folder, sequence)


def recovered(log: Owner, peer: Peer) -> tuple[dict[str, bytes], list[bytes]]:
    """What a successor finds: the files of the base, and the records after it."""
    beat(log, peer)
    log.take_over()
    files = (
        {} if log.base.path is None else {p.name: p.read_bytes() for p in log.base.path.iterdir()}
    )
    return files, [bytes(record.payload) for record in log.records()]

"""Calls to a shard whose server dies, hangs or is replaced; the master is acted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.unit.ps_server.conftest import TOKEN, launch
from tests.waiting import HANG_S
from torch_edl.errors import ServersLostError, ServersReplacedError, UsageError
from torch_edl.ps_client.client import PsClient
from torch_edl.ps_client.connection import ShardConnection
from torch_edl.wire import master_pb2
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.codec import Framed

MODEL = 7
ASK = Framed(pb.PullRequest(dense=True, dense_version=4))


class Master:
    """Knows the servers of one shard, and answers as the master does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._model, self._server = MODEL, master_pb2.Server()
        self.asked = threading.Event()

    def has(self, server: master_pb2.Server, model: int = MODEL) -> None:
        with self._changed:
            self._model, self._server = model, server
            self._changed.notify_all()

    def resolve(self, shard: int, incarnation: int) -> master_pb2.Cluster:
        assert shard == 0
        with self._changed:
            self.asked.set()
            self._changed.wait_for(
                lambda: (
                    self._model != MODEL
                    or (self._server.address and self._server.incarnation > incarnation)
                ),
                timeout=0.2,
            )
            return master_pb2.Cluster(incarnation=self._model, servers=[self._server])


class Started:
    """A server process."""

    def __init__(self, incarnation: int) -> None:
        which = ("--job=j", "--shard=0", "--shards=1", f"--incarnation={incarnation}")
        self.process = launch(*which, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        *_, endpoint, address = self.process.stdout.readline().split()
        self.server = master_pb2.Server(
            address=address, data_plane=endpoint, incarnation=incarnation
        )

    def send(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        if number == signal.SIGKILL:
            self.process.wait()


@pytest.fixture
def start() -> Iterator[Callable[[int], Started]]:
    running: list[Started] = []

    def begin(incarnation: int) -> Started:
        running.append(Started(incarnation))
        return running[-1]

    yield begin
    for each in running:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def connect() -> Iterator[Callable[..., ShardConnection]]:
    made: list[ShardConnection] = []

    def to(server: master_pb2.Server, master: Master | None = None) -> ShardConnection:
        resolve = master.resolve if master is not None else None
        made.append(ShardConnection(0, server, job="j", token=TOKEN, model=MODEL, resolve=resolve))
        return made[-1]

    yield to
    for each in made:
        each.close()


def test_a_call_to_a_dead_server_is_sent_to_its_successor(start, connect) -> None:
    master, first = Master(), start(3)
    connection = connect(first.server, master)
    assert connection.call(ASK, timeout_s=HANG_S).result().incarnation == 3
    first.send(signal.SIGKILL)
    calls = [connection.call(ASK, timeout_s=HANG_S) for _ in range(3)]
    for each in calls:
        each.settle()
    assert master.asked.wait(HANG_S)
    assert not calls[0].done()
    master.has(start(5).server)
    assert [call.result().incarnation for call in calls] == [5, 5, 5]


def test_calls_to_a_dead_server_are_made_again_in_any_order(start, connect) -> None:
    """In that in which their answers are asked for."""
    master, first = Master(), start(3)
    connection = connect(first.server, master)
    connection.call(ASK, timeout_s=HANG_S).result()
    first.send(signal.SIGKILL)
    calls = [connection.call(ASK, timeout_s=HANG_S) for _ in range(2)]
    master.has(start(5).server)
    assert calls[1].result().incarnation == 5
    assert calls[0].result().incarnation == 5
    assert connection.call(ASK, timeout_s=HANG_S).result().incarnation == 5


def test_a_call_to_a_hanging_server_is_sent_to_its_successor(start, connect) -> None:
    """At once, and not when its deadline is over."""
    master, first, second = Master(), start(3), start(5)
    connection = connect(first.server, master)
    assert connection.call(ASK, timeout_s=HANG_S).result().incarnation == 3
    first.send(signal.SIGSTOP)
    call = connection.call(ASK, timeout_s=600)
    connection.moved(second.server)
    assert call.result().incarnation == 5
    connection.moved(first.server)  # word of it that came late
    first.send(signal.SIGCONT)
    assert connection.call(ASK, timeout_s=HANG_S).result().incarnation == 5


def test_a_server_of_another_incarnation_at_the_same_address_is_not_called(start, connect) -> None:
    """Where a successor took over the port; the fence says that it is another one."""
    master, now = Master(), start(5)
    before = master_pb2.Server()
    before.CopyFrom(now.server)
    before.incarnation = 3
    connection = connect(before, master)
    call = connection.call(ASK, timeout_s=HANG_S)
    call.settle()
    assert master.asked.wait(HANG_S)
    assert not call.done()
    master.has(now.server)
    assert call.result().incarnation == 5


def test_what_was_known_of_one_server_is_not_said_to_another(start, connect) -> None:
    connection = connect(start(3).server)
    for known, version, cursor in ((3, 4, 2), (2, -1, 0), (-1, -1, 0)):
        pull = pb.PullRequest(dense=True, dense_version=4)
        connection.call(Framed(pull), timeout_s=HANG_S, known=known).result()
        assert pull.dense_version == version
        assert (pull.fence.job, pull.fence.incarnation) == ("j", 3)
        scan = pb.ReadRowsRequest(name="t", cursor=2)
        with pytest.raises(UsageError, match="unknown"):
            connection.call(Framed(scan), timeout_s=HANG_S, known=known).result()
        assert scan.cursor == cursor


def test_another_incarnation_of_the_model_ends_the_wait(start, connect) -> None:
    master, first = Master(), start(3)
    connection = connect(first.server, master)
    first.send(signal.SIGKILL)
    call = connection.call(ASK, timeout_s=HANG_S)
    call.settle()
    assert master.asked.wait(HANG_S)
    master.has(master_pb2.Server(incarnation=5), model=MODEL + 1)
    with pytest.raises(ServersReplacedError, match="another incarnation"):
        call.result()


@pytest.mark.parametrize("error", [ServersLostError, ServersReplacedError])
def test_calls_of_a_connection_that_is_closed_say_why(start, connect, error) -> None:
    master, first = Master(), start(3)
    connection = connect(first.server, master)
    first.send(signal.SIGKILL)
    calls = [connection.call(ASK, timeout_s=HANG_S) for _ in range(3)]
    for call in calls:
        call.settle()
    assert master.asked.wait(HANG_S)
    connection.close(error)
    master.has(first.server)
    for call in [*calls, connection.call(ASK, timeout_s=HANG_S)]:
        with pytest.raises(error, match="was closed"):
            call.result()


def test_without_a_master_a_dead_server_is_an_error(start, connect) -> None:
    first = start(3)
    connection = connect(first.server)
    first.send(signal.SIGKILL)
    with pytest.raises(ServersLostError, match="UNAVAILABLE"):
        connection.call(ASK, timeout_s=HANG_S).result()


@pytest.mark.parametrize("endpoint", ["", "ipc:///of/another/container"])
def test_a_server_without_a_socket_in_sight_is_unavailable(start, connect, endpoint: str) -> None:
    server = start(3).server
    server.data_plane = endpoint
    with pytest.raises(ServersLostError, match="UNAVAILABLE: no connection to"):
        connect(server).call(ASK, timeout_s=HANG_S).result()


def test_news_of_a_server_do_not_fail_without_the_master() -> None:
    """They come in the thread of the heartbeats."""
    known = master_pb2.Server(address="127.0.0.1:1", data_plane="ipc:///nowhere", incarnation=3)

    def resolve(shard: int, incarnation: int) -> master_pb2.Cluster:
        raise ServersLostError("master: UNAVAILABLE: gone")

    client = PsClient(
        master_pb2.Cluster(incarnation=MODEL, servers=[known]),
        job="j",
        token=TOKEN,
        resolve=resolve,
    )
    try:
        client.follow(4)
        assert client.newest == 3
    finally:
        client.close()

"""A port of a pod at a port of this machine: what is sent arrives, and both ends end together."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import HANG_S
from torch_edl.plugins.kubernetes.cluster.failures import MissingError
from torch_edl.plugins.kubernetes.cluster.forward import Forward


class Pods:
    """Connects to a server of this machine as to a pod; ``gone``: there is no such pod."""

    def __init__(self) -> None:
        self.gone = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.accepted: list[socket.socket] = []
        self.came = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self, pod: str, port: int) -> socket.socket:
        assert (pod, port) == ("ctr-master", 29400)
        if self.gone:
            raise MissingError("forward port 29400 of pod ctr-master: not found", status=404)
        return socket.create_connection(self.server.getsockname())

    def _accept(self) -> None:
        while True:
            try:
                self.accepted.append(self.server.accept()[0])
            except OSError:
                return
            self.came.release()

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for each in self.accepted:
            each.close()


@pytest.fixture
def pods() -> Iterator[Pods]:
    made = Pods()
    yield made
    made.close()


@pytest.fixture
def forward(pods: Pods) -> Iterator[Forward]:
    made = Forward(pods, "ctr-master", 29400)
    yield made
    made.close()


def dial(forward: Forward) -> socket.socket:
    host, _, port = forward.address.rpartition(":")
    assert host == "127.0.0.1"
    return socket.create_connection((host, int(port)), timeout=HANG_S)


def test_what_is_sent_arrives_in_both_directions(pods: Pods, forward: Forward) -> None:
    with dial(forward) as here:
        assert pods.came.acquire(timeout=HANG_S)
        there = pods.accepted[0]
        here.sendall(b"to the pod" * 20_000)
        received = b""
        while len(received) < 200_000:
            received += there.recv(1 << 16)
        assert received == b"to the pod" * 20_000
        there.sendall(b"back")
        assert here.recv(16) == b"back"


def test_the_end_of_either_side_is_the_end_of_the_other(pods: Pods, forward: Forward) -> None:
    with dial(forward) as here:
        assert pods.came.acquire(timeout=HANG_S)
        pods.accepted[0].close()
        assert here.recv(16) == b""
    with dial(forward) as here:
        assert pods.came.acquire(timeout=HANG_S)
    assert pods.accepted[1].recv(16) == b""


def test_a_pod_that_is_gone_is_told_and_may_come_back(pods: Pods, forward: Forward) -> None:
    pods.gone = True
    with dial(forward) as here:
        assert here.recv(16) == b""
    assert isinstance(forward.error, MissingError)
    pods.gone = False
    with dial(forward) as here:
        assert pods.came.acquire(timeout=HANG_S)
        pods.accepted[0].sendall(b"x")
        assert here.recv(16) == b"x"
        assert forward.error is None


def test_close_ends_all_connections(pods: Pods, forward: Forward) -> None:
    with dial(forward) as here:
        assert pods.came.acquire(timeout=HANG_S)
        forward.close()
        assert here.recv(16) == b""
    refused = False
    while not refused:  # the thread that listens may not have heard yet
        try:
            dial(forward).close()
        except ConnectionRefusedError:
            refused = True

"""A server and its master: it says that it lives, and ends when another one has its shard."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.ps_server.conftest import TOKEN, launch
from tests.waiting import HANG_S
from torch_edl.config.environment import ENV_MASTER
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.server import serve


class Master:
    """Hears servers, and knows them until it is told not to."""

    def __init__(self) -> None:
        self.heard: queue.Queue[pb.ServerHeartbeatRequest] = queue.Queue()
        self.registered: queue.Queue[pb.RegisterServerRequest] = queue.Queue()
        self.known = True
        handlers = {
            "RegisterServer": self._register,
            "ServerHeartbeat": self._heartbeat,
            "GetCluster": lambda request, context: pb.GetClusterResponse(),
        }
        self.server, port = serve(
            services.SERVERS, handlers, address="127.0.0.1:0", token=TOKEN, threads=4
        )
        self.address = f"127.0.0.1:{port}"

    def _register(self, request: pb.RegisterServerRequest, context) -> pb.RegisterServerResponse:
        if not self.known:
            raise UsageError("not a server that this job waits for")
        self.registered.put(request)
        return pb.RegisterServerResponse()

    def _heartbeat(self, request: pb.ServerHeartbeatRequest, context) -> pb.ServerHeartbeatResponse:
        self.heard.put(request)
        return pb.ServerHeartbeatResponse(known=self.known)

    def start(self, *words: str) -> subprocess.Popen[str]:
        which = ("--job=j", "--shard=1", "--shards=2", "--incarnation=5")
        env = {ENV_MASTER: self.address}
        return launch(*which, *words, env=env, stderr=subprocess.PIPE)


@pytest.fixture
def master() -> Iterator[Master]:
    made = Master()
    yield made
    made.server.stop(0).wait()


def test_a_server_that_was_replaced_ends(master: Master) -> None:
    process = master.start()
    registered = master.registered.get(timeout=HANG_S)
    assert (registered.shard, registered.incarnation, registered.lost) == (1, 5, "")
    assert master.heard.get(timeout=HANG_S).incarnation == 5
    master.known = False
    _, log = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "another server has shard 1: this one was replaced and ends" in log


def test_what_keeps_a_server_from_starting_is_told(master: Master, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file")
    process = master.start(f"--journal={tmp_path / 'journal'}")
    told = threading.Event()
    while not told.is_set():
        if "journal" in master.heard.get(timeout=HANG_S).problem:
            told.set()
    process.communicate(timeout=HANG_S)
    assert process.returncode == 1

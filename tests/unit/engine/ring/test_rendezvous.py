"""Who is refused a ring: since the job is over, since the master took it for lost, or since neither
torchrun nor torch-edl run started it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from torch_edl.config import JobConfig
from torch_edl.engine.ring.rendezvous import MasterRendezvous, TorchrunRendezvous
from torch_edl.errors import DeclaredLostError, DismissedError, JobFailedError, UsageError
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.endpoint import free_port
from torch_edl.wire.server import serve

SERVICE = services.MASTER


@pytest.fixture
def refused() -> Iterator[Callable[[bool], MasterRendezvous]]:
    """``refused(known)``: a rendezvous whose master wants nobody, and knows the worker or not."""
    opened: list[Callable[[], object]] = []

    def start(known: bool) -> MasterRendezvous:
        handlers = dict.fromkeys(services.methods(SERVICE), lambda request, _: None)
        handlers["JoinRing"] = lambda request, _: pb.JoinRingResponse(leave=True)
        handlers["Heartbeat"] = lambda request, _: pb.HeartbeatResponse(known=known)
        server, port = serve(SERVICE, handlers, address="127.0.0.1:0", token="t", threads=4)
        stub, progress = Stub(SERVICE, f"127.0.0.1:{port}", "t"), WorkerStatus()
        opened.extend([stub.close, lambda: server.stop(grace=None).wait()])
        heartbeat = Heartbeat(stub, 0, progress)
        session: Any = SimpleNamespace(
            master=stub, worker_id=0, heartbeat=heartbeat, progress=progress,
            config=JobConfig(name="rings", model_file="m.py"),
        )  # fmt: skip
        return MasterRendezvous(session, SimpleNamespace(address="127.0.0.1:1"))

    yield start
    for close in opened:
        close()


@pytest.mark.parametrize(("known", "error"), [(False, DeclaredLostError), (True, DismissedError)])
def test_one_that_is_not_wanted_leaves_and_one_that_was_given_up_is_replaced(
    refused: Callable[[bool], MasterRendezvous], known: bool, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        refused(known).next(1, 5)
    assert caught.type is error


def test_a_launcher_that_serves_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match=r"\['MASTER_ADDR'\] not: .* by torchrun or torch-edl run"):
        TorchrunRendezvous()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    rendezvous = TorchrunRendezvous()
    with pytest.raises(JobFailedError, match=f"nobody answers at .*=127.0.0.1:{port} .*refused"):
        rendezvous.next(0, -1)

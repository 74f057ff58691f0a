"""Who is refused a ring: since the job is over, since the master took it for lost, or since neither
torchrun nor torch-edl run started it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from torch_edl.config import JobConfig
from torch_edl.engine.ring.membership import RingMembership
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


@pytest.fixture
def reports() -> Iterator[tuple[MasterRendezvous, list[pb.ReportSpanRequest], list[bool]]]:
    """A rendezvous with a master that notes the spans, and whether it has heard enough."""
    told: list[pb.ReportSpanRequest] = []
    enough = [False]

    def report(request: pb.ReportSpanRequest, _: Any) -> pb.ReportSpanResponse:
        told.append(request)
        return pb.ReportSpanResponse(enough=enough[0])

    handlers = dict.fromkeys(services.methods(SERVICE), lambda request, _: None)
    handlers["ReportSpan"] = report
    server, port = serve(SERVICE, handlers, address="127.0.0.1:0", token="t", threads=4)
    stub, progress = Stub(SERVICE, f"127.0.0.1:{port}", "t"), WorkerStatus()
    session: Any = SimpleNamespace(
        master=stub, worker_id=3, heartbeat=Heartbeat(stub, 3, progress), progress=progress,
        config=JobConfig(name="rings", model_file="m.py"),
    )  # fmt: skip
    yield MasterRendezvous(session, SimpleNamespace(address="127.0.0.1:1")), told, enough
    stub.close()
    server.stop(grace=None).wait()


def test_a_member_reports_what_it_trains_until_the_master_has_heard_enough(
    reports: tuple[MasterRendezvous, list[pb.ReportSpanRequest], list[bool]],
) -> None:
    rendezvous, told, enough = reports
    replica = SimpleNamespace(position=SimpleNamespace(pass_index=2))
    member = RingMembership(SimpleNamespace(replica=replica), rendezvous, lambda: None)
    member.ring = 5

    def train(first: int, *, raises: bool = False) -> list[tuple[int, int, int, int, str]]:
        told.clear()
        with contextlib.suppress(ValueError), member.reporting((first, first + 4), lambda: "r"):
            if raises:
                raise ValueError
        return [(r.ring, r.pass_index, r.span.first, r.span.last, r.span.name) for r in told]

    assert train(0) == [], "no member died"
    member.reports_spans = True
    assert train(4) == [(5, 2, 4, 8, "r"), (5, 2, 0, 0, "")]
    assert train(8, raises=True) == [(5, 2, 8, 12, "r")], "it is at work on them to its end"
    enough[0] = True
    assert len(train(12)) == 1
    assert train(16) == []


def test_a_master_that_is_away_is_asked_once(
    reports: tuple[MasterRendezvous, list[pb.ReportSpanRequest], list[bool]],
) -> None:
    rendezvous, told, _ = reports
    rendezvous._master.close()
    rendezvous._master = Stub(SERVICE, f"127.0.0.1:{free_port()}", "t")
    assert not rendezvous.report_span(5, 0, pb.TaskStep(first=1, last=2, name="r"))
    assert not told
    rendezvous._master.close()


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

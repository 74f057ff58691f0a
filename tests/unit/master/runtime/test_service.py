"""The service of the master: which calls wait for which."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import grpc

from master.runtime.service import Service
from tests.unit.master.world import running
from tests.waiting import HANG_S
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.server import Handler

TOKEN = "t"


def test_a_heartbeat_is_answered_while_any_number_of_idle_workers_waits() -> None:
    """A job that starts with few workers may be scaled to hundreds."""
    w = running(workers=2)
    w.lease(1, want=100)  # the other worker takes all tasks
    waiting = threading.Semaphore(0)

    class Counted(Service):
        """Counts the calls that begin to wait."""

        def _waiting_handlers(self) -> dict[str, Handler]:
            handlers = super()._waiting_handlers()
            lease = handlers["Lease"]

            def counted(request: Any, context: grpc.ServicerContext) -> Any:
                waiting.release()
                return lease(request, context)

            return {**handlers, "Lease": counted}

    # In frozen time, they wait until they are cancelled.
    service = Counted(w.job, clock=lambda: w.now, log_path=lambda role, id: "", cores=1)
    service.listen(TOKEN)
    with contextlib.ExitStack() as stack:
        stack.callback(service.close)
        stubs = [Stub(services.MASTER, service.address, TOKEN) for _ in range(4)]
        for stub in stubs:
            stack.callback(stub.close)
        ask = pb.LeaseRequest(worker_id=0, want=1, incarnation=1).SerializeToString()
        calls = [
            stub._methods["Lease"].future(
                ask, timeout=HANG_S, metadata=stub._metadata, wait_for_ready=True
            )
            for stub in stubs
            for _ in range(50)
        ]
        for _ in calls:
            assert waiting.acquire(timeout=HANG_S)
        heartbeat = Stub(services.MASTER, service.address, TOKEN)
        stack.callback(heartbeat.close)
        assert heartbeat.call(pb.HeartbeatRequest(worker_id=0), timeout_s=HANG_S).known
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from master.runtime.service import Service
from master.state.job.job import ManagedJob
from master.state.workforce.fleet import Fleet
from master.state.workforce.servers import ServerCommand
from master.state.workforce.starts import AgentPods
from tests.waiting import HANG_S, wait_for
from torch_edl.config import JobConfig
from torch_edl.events import Other
from torch_edl.launch.agent import reporter as reporter_module
from torch_edl.launch.agent.reporter import Reporter
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

from .conftest import TOKEN


def test_an_agent_that_shows_no_events_knows_how_the_job_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporter_module, "PERIOD_S", 10 * HANG_S)  # what is new is told at once
    config = JobConfig(name="j", kind="script", model_file="/train.py")
    fleet = Fleet(ServerCommand(job="j"), workers=1, servers=0, agents=AgentPods())
    job = ManagedJob(config, fleet, folder=Path("/job"))
    job.start(0.0)
    job.lifecycle.note(Other(severity="info", message="an event"), 0.0)
    service = Service(job, clock=time.monotonic, log_path=lambda role, id: "", cores=1)
    address = service.listen(TOKEN, "127.0.0.1:0")
    answered = threading.Event()
    stub = Stub(services.MASTER, address, TOKEN)
    shown: list[pb.GetStatusResponse] = []
    reporter = Reporter(
        stub,
        pb.AgentReportRequest(node="n", host="h", id="1", address="127.0.0.1", port=1),
        wake=answered.set,
        show=shown.append,
        wants_events=False,
    )
    try:
        assert reporter.turn(time.monotonic()) is None
        assert answered.wait(HANG_S)
        assert reporter.turn(time.monotonic()) is not None
        assert [status.job for status in shown] == ["j"]
        assert not shown[0].events
        reporter.tell([])
        wait_for(lambda: reporter.turn(time.monotonic()))
    finally:
        reporter.close()
        stub.close()
        service.close()

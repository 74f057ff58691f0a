"""The history of a job on a cluster, which its master sends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from master.runtime import service as served
from master.runtime.service import Service
from tests.unit.master.world import World
from torch_edl.config import JobConfig
from torch_edl.events import Other
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.dashboard import recorder, view
from torch_edl.plugins.dashboard.recorder import Recorder
from torch_edl.plugins.dashboard.samples import History, Samples
from torch_edl.plugins.dashboard.view import View
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb


@pytest.fixture
def master(home: Path) -> Service:
    folder = JobFolder("remote")
    folder.dir.mkdir(parents=True)
    return Service(
        World().job,
        clock=lambda: 5.0,
        log_path=lambda role, id: "",
        cores=1,
        history=folder.history_file,
    )


@pytest.fixture
def written(master: Service) -> Recorder:
    made = Recorder("")
    made.begin(JobConfig(name="remote", model_file="model.py"))
    return made


def _ask(master: Service, request: pb.GetStatusRequest) -> pb.GetStatusResponse:
    status: pb.GetStatusResponse = master.handlers()["GetStatus"](request, None)
    return status


def _event(sequence: int, text: str) -> bytes:
    message = event_messages.to_message(Other(severity="info", message=text), sequence, 640.0)
    return event_messages.to_line(message).encode() + b"\n"


def _scalars(made: Recorder, steps: range) -> None:
    for step in steps:
        made.scalars(step, 100.0 + step, {"train/loss": 1.0})


def test_parts_are_the_file(
    master: Service, written: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the recorder thins its file between two parts."""
    monkeypatch.setattr(recorder, "_MOST_SCALARS", 100)
    monkeypatch.setattr(served, "_PART_BYTES", 700)
    remote, got = History(None), Samples()

    def read() -> None:
        while True:
            asked = pb.GetStatusRequest(history_after=remote.after)
            if not remote.take(_ask(master, asked).history, got):
                return

    read()
    assert not got.kept
    for start in range(0, 1000, 50):
        _scalars(written, range(start, start + 50))
        asked = pb.GetStatusRequest(history_after=remote.after)
        remote.take(_ask(master, asked).history, got)  # one part of several
    written.end("finished", "")
    read()
    local, expected = History(JobFolder("remote").history_file), Samples()
    local.read(expected)
    assert len(expected.all) > 40
    assert got.all == expected.all
    assert (got.kept, got.interval_s) == (True, expected.interval_s)


def test_a_client_that_does_not_ask_gets_none(master: Service, written: Recorder) -> None:
    _scalars(written, range(5))
    assert not _ask(master, pb.GetStatusRequest()).HasField("history")


def test_the_page_has_what_was_before_it_was_opened(
    master: Service, written: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that runs, and of one that has ended."""
    monkeypatch.setattr(served, "_PART_BYTES", 10_000)
    monkeypatch.setattr(view, "_FULL_BYTES", 10_000)
    _scalars(written, range(1, 501))
    job: Any = SimpleNamespace(
        name="remote",
        started=lambda: 90.0,
        ask=lambda request: _ask(master, request),
        config=lambda: JobConfig(name="remote", model_file="model.py"),
        history=lambda: _event(7, "the master was lost soon after this"),
    )
    shown = View(job, clock=lambda: 700.0)
    shown.refresh()
    assert shown.page()["samples_total"] >= 499
    assert [event["sequence"] for event in shown.page()["events"]] == [7]

    def over(_: object) -> pb.GetStatusResponse:
        raise view.EdlError("its master does not run")

    written.end("finished", "")
    job.ask, job.report = over, lambda: {"state": "finished", "processes": [], "rates": {}}
    left = JobFolder("remote").history_file.read_bytes()
    left += _event(7, "the master was lost soon after this") + _event(9, "finished")
    job.history, job.touched = lambda: left, lambda: 650.0
    ended = View(job, clock=lambda: 700.0)
    for page in (ended, shown):  # opened after the end, and before
        page._read_at = 0.0
        page.refresh()
        assert page.page()["samples_total"] >= 499
        assert page.page()["over"]
        assert [event["sequence"] for event in page.page()["events"]] == [7, 9]
    assert ended.page()["samples_total"] == 500

"""Spans of steps, as an exporter and as a collector receives them."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs torch-edl[opentelemetry]")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.collector import collector
from torch_edl.errors import UsageError
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.plugins.opentelemetry import spans
from torch_edl.training.loop import Stopwatch

SENDS = """
import sys
from torch_edl.master_client.heartbeat import ACTIVITIES
from torch_edl.plugins.opentelemetry import spans

seconds = spans.open(sys.argv[1], "digits", 3, dict.fromkeys(ACTIVITIES, 0.0))
for _ in range(10):
    for activity in ACTIVITIES:
        seconds[activity] += 0.5
"""


def test_a_step_is_a_span_with_its_activities() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    now = 0.0
    status = WorkerStatus()
    status.seconds = spans.Spans(
        status.seconds, provider.get_tracer("t"), clock=lambda: 10**18 + round(1e9 * now)
    )
    watch = Stopwatch(status.seconds, clock=lambda: now)
    step = ("data", "pull", "compute", "pull", "compute", "push")  # of two minibatches
    for activity in step * 2:
        now += 0.25
        watch.end(activity)
    assert dict(status.request(1).seconds) == {"data": 0.5, "pull": 1, "compute": 1, "push": 0.5}
    first, second = (
        [s for s in exporter.get_finished_spans() if s.context.trace_id == trace]
        for trace in dict.fromkeys(s.context.trace_id for s in exporter.get_finished_spans())
    )
    assert [s.name for s in first] == [s.name for s in second] == [*step, "step"]
    for number, (*activities, whole) in enumerate((first, second), 1):
        assert whole.attributes == {"torch_edl.step": number}
        assert {s.parent.span_id for s in activities} == {whole.context.span_id}
        at = [(s.start_time - 10**18) / 1e9 for s in activities]
        assert at == [1.5 * (number - 1) + 0.25 * place for place in range(6)]
        assert all(s.end_time - s.start_time == 0.25e9 for s in activities)
        assert (whole.start_time, whole.end_time) == (
            activities[0].start_time,
            activities[-1].end_time,
        )


def test_a_collector_has_all_spans_when_the_process_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with collector() as found:
        subprocess.run([sys.executable, "-c", SENDS, found.url], check=True)
    ((name, sent),) = found.spans.items()
    assert name == ("digits", "worker-3")
    assert sorted({s.name for s in sent}) == ["compute", "data", "pull", "push", "step"]
    assert len(sent) == 50
    assert math.isclose(sent[0].end_time_unix_nano - sent[0].start_time_unix_nano, 0.5e9)


def test_a_process_that_exits_tries_once_if_the_collector_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with collector() as found:
        found.status = 400
        exporter = spans.SpanSender(endpoint=f"{found.url}/v1/traces")
        results = [exporter.export([]) for _ in range(2)]
        exporter.close()
        results += [exporter.export([]) for _ in range(3)]
    assert results == [SpanExportResult.FAILURE] * 5
    assert found.asked == 2


def test_a_url_of_another_kind_is_rejected() -> None:
    spans.check("https://collector:4318")
    with pytest.raises(UsageError, match="--trace collector:4318: write the URL of a collector"):
        spans.check("collector:4318")

"""Spans of the steps of one worker: a span for each step, and one for each of its activities."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Span, Tracer, set_span_in_context

from torch_edl.errors import UsageError

_FIRST, _LAST = "data", "push"
# Seconds within which a collector must receive a batch of 512 spans.
_SEND_S = 5.0


def check(url: str) -> None:
    """Check the value of ``--trace``.

    Raises:
        UsageError: it is no URL of an HTTP server.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"--trace {url}: write the URL of a collector that receives OTLP over HTTP, such as "
            "http://localhost:4318"
        )


def open(url: str, job: str, worker: int, seconds: Mapping[str, float]) -> Spans:
    """Return the seconds of a training loop, such that their additions send spans.

    The variables ``OTEL_*`` of the environment have their usual meaning, such as
    ``OTEL_TRACES_SAMPLER`` and ``OTEL_EXPORTER_OTLP_HEADERS``.
    """
    resource = Resource.create({SERVICE_NAME: job, SERVICE_INSTANCE_ID: f"worker-{worker}"})
    provider = TracerProvider(resource=resource)  # sends its last spans when the process exits
    exporter = SpanSender(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=_SEND_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    atexit.register(exporter.close)
    return Spans(seconds, provider.get_tracer("torch_edl"))


class SpanSender(OTLPSpanExporter):
    """Sends spans. A process that exits does not try again once a batch was not received: the SDK
    would try for 30 s, and the process may have less time to leave."""

    _failed = _closing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._failed and self._closing:
            return SpanExportResult.FAILURE
        result = super().export(spans)
        self._failed = result is not SpanExportResult.SUCCESS
        return result

    def close(self) -> None:
        """Begin the exit of the process."""
        self._closing = True


class Spans(dict[str, float]):
    """Seconds of a training loop by activity. Each addition ends an activity, and makes its span.

    Args:
        seconds: the sums so far.
        clock: returns the Unix time in nanoseconds.
    """

    def __init__(
        self,
        seconds: Mapping[str, float],
        tracer: Tracer,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(seconds)
        self._tracer, self._clock = tracer, clock
        self._step: Span | None = None
        self._steps = 0

    def __setitem__(self, activity: str, total: float) -> None:
        now = self._clock()
        began = now - round(1e9 * (total - self[activity]))
        super().__setitem__(activity, total)
        if activity == _FIRST or self._step is None:
            self._steps += 1
            counted = {"torch_edl.step": self._steps}
            self._step = self._tracer.start_span("step", start_time=began, attributes=counted)
        inside = set_span_in_context(self._step)
        self._tracer.start_span(activity, context=inside, start_time=began).end(now)
        if activity == _LAST:
            self._step.end(now)
            self._step = None

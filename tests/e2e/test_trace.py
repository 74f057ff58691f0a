"""The spans of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs torch-edl[opentelemetry]")

from tests.collector import collector
from tests.place import Place


@pytest.mark.slow  # tests/unit/plugins/test_opentelemetry.py sends the spans of one process
def test_each_step_of_each_worker_is_a_span(place: Place, digits: Path) -> None:
    place.env["NO_PROXY"] = "127.0.0.1"
    with collector() as found:
        place(
            f"run %/mnist/model.py --data {digits}/train-*.recordio --job-name traced --ps 1 "
            f"--workers 2 --summary s.json --trace {found.url}"
        )
    steps = 0
    for (job, worker), spans in found.spans.items():
        assert (job, worker in ("worker-0", "worker-1")) == ("traced", True)
        whole = {span.span_id for span in spans if span.name == "step"}
        parts = [span for span in spans if span.name != "step"]
        assert {span.name for span in parts} == {"data", "pull", "compute", "push"}
        # A worker that leaves while it waits for records sends that span without its step.
        assert {span.parent_span_id for span in parts if span.name != "data"} == whole
        steps += len(whole)
    assert steps == place.json("s.json")["steps"]

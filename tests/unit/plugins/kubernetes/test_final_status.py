"""The last status of a job in the bytes that an annotation keeps."""

from __future__ import annotations

import math

import pytest

from torch_edl.plugins.kubernetes.objects import final_status
from torch_edl.wire import master_pb2 as pb


def status(**fields: object) -> pb.GetStatusResponse:
    made = pb.GetStatusResponse(state="failed", records={"done": 12}, loss=math.nan, **fields)
    made.processes.add(role="worker", id=1)
    made.events.add(sequence=1, text="a note")
    for steps in (1, 2):
        made.evaluations.add(steps=steps, metrics={"auc": 0.5})
    return made


def test_what_is_read_is_what_was_written_without_what_is_long() -> None:
    found = final_status.from_text(final_status.to_text(status(error="no", traceback="line")))
    assert found is not None
    assert (found.state, found.records.done, found.error, found.traceback) == (
        "failed", 12, "no", "line"
    )  # fmt: skip
    assert math.isnan(found.loss)
    assert [each.steps for each in found.evaluations] == [2]
    assert not found.events
    assert not found.processes


@pytest.mark.parametrize("letter", ["x", "é", "\n", "\x00", "🙂"])
def test_a_text_of_any_length_fits_and_keeps_the_end_of_the_traceback(letter: str) -> None:
    long = letter * 100_000
    made = status(error=long, traceback=f"{long}ValueError", reason=long)
    made.logged.update({f"{letter * 90}{number}": 1.0 for number in range(100)})
    for most in (final_status.MAX_MESSAGE_BYTES, final_status.MAX_BYTES):
        text = final_status.to_text(made, most=most)
        assert len(text.encode()) <= most
    found = final_status.from_text(text)
    assert found is not None
    assert found.error.endswith("...")
    short = final_status.from_text(final_status.to_text(status(traceback=f"{long}ValueError")))
    assert short is not None
    assert short.traceback.endswith("ValueError")


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last)", "{", "{1: 2}", "[]"])
def test_another_text_is_no_status(text: str) -> None:
    assert final_status.from_text(text) is None

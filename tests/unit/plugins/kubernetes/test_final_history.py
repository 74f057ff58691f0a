"""The curves of a job that is over in the bytes that an annotation keeps."""

from __future__ import annotations

import json
import random

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.objects import final_history


def _history(points: int, processes: int) -> bytes:
    noise = random.Random(0)
    lines = [{"kind": "begin", "interval_s": 2.0}]
    lines += [{"kind": "process", "time": i, "role": "worker", "id": i} for i in range(processes)]
    lines += [
        {"kind": "scalars", "time": i, "step": i, "values": {"train/loss": noise.random()}}
        for i in range(points)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _events(first: int, last: int, **more: str) -> bytes:
    told = {"time": 1.0, "level": "info", **more}
    events = [{"sequence": n, **told, "text": f"event {n * n}"} for n in range(first, last + 1)]
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def test_a_short_history_is_whole() -> None:
    content = _history(50, 5)
    manifest = {"metadata": {"annotations": {names.HISTORY: final_history.to_text(content)}}}
    assert final_history.of(manifest) == content


def test_a_long_history_is_thinned_and_keeps_its_end() -> None:
    text = final_history.to_text(_history(6000, 300))
    assert len(text) <= final_history.MAX_BYTES
    found = [json.loads(line) for line in final_history.from_text(text).splitlines()]
    points = [line["step"] for line in found if line["kind"] == "scalars"]
    assert 500 < len(points) < 6000
    assert points[-1] == 5999
    assert found[0]["interval_s"] == 2.0 * (points[1] - points[0])
    assert sum(line["kind"] == "process" for line in found) == 300
    many = final_history.to_text(_history(10, 50_000))
    assert len(many) <= final_history.MAX_BYTES
    assert b'"step": 9' in final_history.from_text(many)


def test_the_newest_events_are_kept_beside_the_curves() -> None:
    history, events = _history(50, 5), _events(1, 30, traceback='"kind": "scalars"')
    text = final_history.to_text(history, events)
    assert final_history.parts(final_history.from_text(text)) == (history, events)
    text = final_history.to_text(_history(6000, 300), _events(1, 50_000), most=32_000)
    assert len(text) <= 32_000
    curves, newest = final_history.parts(final_history.from_text(text))
    assert curves.count(b"scalars") >= 100
    first = 50_001 - newest.count(b"\n")
    assert newest == _events(first, 50_000)
    assert 49_001 <= first < 49_900


def test_an_event_that_does_not_fit_is_left_out() -> None:
    noise = random.Random(0).randbytes(40_000).hex()
    text = final_history.to_text(_history(50, 0), _events(1, 1, traceback=noise))
    assert final_history.from_text(text) == _history(50, 0)
    assert final_history.to_text(b"", _events(1, 1, traceback=noise)) == ""


def test_no_history_and_a_damaged_one_are_empty() -> None:
    assert final_history.to_text(b"") == ""
    for text in ("", "x", "????", final_history.to_text(_history(5, 0))[:30]):
        assert len(final_history.from_text(text)) < 30
    assert final_history.of({"metadata": {}}) == b""

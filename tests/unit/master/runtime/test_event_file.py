from __future__ import annotations

import json
from pathlib import Path

import pytest

from master.runtime.event_file import EventFile
from master.state.lifecycle import EventLog


def test_a_master_that_goes_on_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events, journal = EventLog(), EventFile(path)
    events.add("info", "ring 1", 1.0)
    events.add("error", "no", 2.0, "Traceback")
    journal.write(events.after(journal.written))
    journal.write(events.after(journal.written))
    events, journal = EventLog(), EventFile(path)
    events.continue_after(journal.written)
    assert events.after(journal.written) == []
    events.add("info", "the master is back", 3.0)
    assert [event.sequence for event in events.after(2)] == [3]
    journal.write(events.after(journal.written))
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["sequence"] for event in told] == [1, 2, 3]
    assert told[1] == {"sequence": 2, "time": 2.0, "level": "error", "text": "no",
                       "traceback": "Traceback"}  # fmt: skip


def test_a_disk_that_refuses_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events, journal = EventLog(), EventFile(tmp_path / "gone" / "events.jsonl")
    for number in (1, 2):
        events.add("info", "x", 1.0)
        journal.write(events.after(journal.written))
        assert journal.written == number
    assert caplog.text.count("events are not kept") == 1


def test_a_line_that_a_full_disk_cut_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events, journal = EventLog(), EventFile(path)
    for text in ("one", "two"):
        events.add("info", text, 1.0)
    journal.write(events.after(0))
    path.write_bytes(path.read_bytes()[:-20])
    journal = EventFile(path)
    assert journal.written == 1
    events = EventLog()
    events.continue_after(journal.written)
    events.add("info", "the master is back", 3.0)
    journal.write(events.after(journal.written))
    first, _, last = path.read_text().splitlines()
    assert [json.loads(line)["text"] for line in (first, last)] == ["one", "the master is back"]
    assert EventFile(path).written == 2

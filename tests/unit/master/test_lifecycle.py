"""Events and rates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from master.state.lifecycle import EventLog, Lifecycle, Rates
from torch_edl.errors import UsageError
from torch_edl.events import Event, FaultInjected, JobFinished, Other
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb


def event(text: str) -> Event:
    return Other(severity="info", message=text)


def test_events_are_numbered_told_once_and_old_ones_go():
    events = EventLog()
    for i in range(1, 15_001):
        events.add(event(str(i)), 1.0)
    assert [e.sequence for e in events.after(0)] == list(range(5_001, 15_001))
    assert [e.sequence for e in events.page(0)] == list(range(13_001, 15_001)), "one answer"
    assert [e.sequence for e in events.page(1)] == list(range(5_001, 7_001))
    assert [e.sequence for e in events.page(7_000)] == list(range(7_001, 9_001))
    assert [(e.sequence, e.text) for e in events.after(14_998)] == [
        (14_999, "14999"),
        (15_000, "15000"),
    ]
    assert events.after(15_000) == events.after(15_999) == []


def test_a_client_receives_the_events_of_a_master_that_was_restarted_without_the_file():
    """A pod of a cluster is replaced with its files. The stored state may lack the last events."""
    before, after = Lifecycle(wall_offset_s=0.0), Lifecycle(wall_offset_s=0.0)
    before.note(event("stored"), 1.0)
    state = before.to_state()
    for _ in range(9):
        before.note(event("not stored"), 1.0)
    known = before.log.after(0)[-1].sequence
    after.from_state(state, 0.0)
    after.note(event("restarted"), 2.0)
    assert [event.text for event in after.log.after(known)] == ["restarted"]
    # With the file, the numbers continue without a gap.
    same = Lifecycle(wall_offset_s=0.0)
    same.log.continue_after(known)
    same.from_state(state, 0.0)
    same.note(event("restarted"), 2.0)
    assert same.log.after(known)[0].sequence == known + 1


def faults(*numbers: int, **fields: Any) -> list[pb.Event]:
    """Events as ``torch-edl chaos`` sends them."""
    sent = []
    for number in numbers:
        fault = FaultInjected(process=f"worker-{number}", place="pid 7", fault="killed")
        message = event_messages.to_message(fault, number, 5.0)
        message.MergeFrom(pb.Event(**fields))
        sent.append(message)
    return sent


def struck(log: EventLog) -> list[str]:
    return [str(getattr(event_messages.from_message(e), "process", "")) for e in log.after(0)]


class TestEventsOfCommands:
    def test_each_is_added_once_however_often_it_is_sent(self):
        log = EventLog()
        log.add_from("chaos-a", faults(1, 2))
        log.add_from("chaos-a", faults(1, 2, 3))
        log.add_from("chaos-b", faults(1))
        assert struck(log) == ["worker-1", "worker-2", "worker-3", "worker-1"]
        assert [e.sequence for e in log.after(0)] == [1, 2, 3, 4]

    def test_the_text_is_made_by_the_master(self):
        log = EventLog()
        log.add_from("chaos-a", faults(1, text="<b>all is lost</b>", level="error"))
        (kept,) = log.after(0)
        assert (kept.level, kept.text) == ("warning", "chaos: worker-1 (pid 7) killed")

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"fields": "[1"}, "kind 'fault_injected': fields: "),
            ({"fields": '{"pause_s": NaN}'}, "kind 'fault_injected': fields: "),
            ({"fields": '{"process": "worker-1"}'}, "'fault_injected', which no command reports"),
            ({"fields": "x" * 20_000}, "fields of 20,000 characters"),
            ({"kind": "worker_lost"}, "'worker_lost', which no command reports"),
            ({"kind": "loss"}, "'loss', which no command reports"),
            ({"kind": "vanished"}, "'vanished', which no command reports"),
            ({"time": 1e300}, "at the time 1e[+]300"),
            ({"time": -1.0}, "at the time -1.0"),
            ({"time": math.nan}, "at the time nan"),
        ],
    )
    def test_what_is_no_event_of_a_command_is_refused_with_all_that_came_with_it(
        self, fields: dict[str, Any], error: str
    ):
        log = EventLog()
        with pytest.raises(UsageError, match=error):
            log.add_from("chaos-a", [*faults(1), *faults(2, **fields)])
        assert log.after(0) == []
        assert not log.counts
        assert not log.sources

    def test_a_restarted_master_remembers_them(self):
        before, after = Lifecycle(wall_offset_s=0.0), Lifecycle(wall_offset_s=0.0)
        before.log.add_from("chaos-a", faults(1, 2))
        before.rollbacks, before.records_rolled_back = 1, 640
        after.from_state(before.to_state(), 0.0)
        after.log.add_from("chaos-a", faults(2, 3))
        assert struck(after.log) == ["worker-3"]
        assert (after.rollbacks, after.records_rolled_back) == (1, 640)

    def test_events_are_counted_by_kind_and_level_across_masters(self):
        before, after = Lifecycle(wall_offset_s=0.0), Lifecycle(wall_offset_s=0.0)
        before.note(JobFinished(), 1.0)
        before.log.add_from("chaos-a", faults(1, 2))
        after.from_state(before.to_state(), 0.0)
        after.log.add_from("chaos-a", faults(2, 3))
        assert after.log.counts == {
            ("job_finished", "info"): 1,
            ("fault_injected", "warning"): 3,
        }

    def test_what_is_kept_is_bounded(self):
        log = EventLog()
        for source in range(1000):
            log.add_from(f"chaos-{source}", faults(1))
        assert len(log.sources) == 100


def test_rates_slide():
    rates = Rates()
    assert rates.per_second() == (0.0, 0.0)
    for second in range(30):
        rates.sample(float(second), 100 * second, second)
    assert rates.per_second() == pytest.approx((100.0, 1.0))
    for second in range(30, 60):
        rates.sample(float(second), 2900, 29)
    assert rates.per_second() == (0.0, 0.0)


def test_rates_begin_anew_when_training_goes_back():
    rates = Rates()
    rates.sample(0.0, 0, 0)
    rates.sample(1.0, 1000, 10)
    rates.sample(2.0, 500, 5)
    assert rates.per_second() == (0.0, 0.0)
    rates.sample(3.0, 600, 6)
    assert rates.per_second() == pytest.approx((100.0, 1.0))

"""Events and rates."""

from __future__ import annotations

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
    assert [e.sequence for e in events.after(0)] == list(range(13_001, 15_001)), "one answer"
    assert [e.sequence for e in events.after(1)] == list(range(5_001, 7_001))
    assert [e.sequence for e in events.after(7_000)] == list(range(7_001, 9_001))
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


class TestEventsOfCommands:
    def events(self, *numbers: int, level: str = "warning") -> list[pb.Event]:
        return [
            pb.Event(sequence=n, time=5.0, level=level, text=f"kill {n}", kind="other")
            for n in numbers
        ]

    def test_each_is_added_once_however_often_it_is_sent(self):
        log = EventLog()
        log.add_from("chaos-a", self.events(1, 2))
        log.add_from("chaos-a", self.events(1, 2, 3))
        log.add_from("chaos-b", self.events(1))
        texts = [e.text for e in log.after(0)]
        assert texts == ["kill 1", "kill 2", "kill 3", "kill 1"]
        assert [e.sequence for e in log.after(0)] == [1, 2, 3, 4]

    def test_an_event_keeps_its_kind_and_its_fields(self):
        log = EventLog()
        fault = FaultInjected(process="ps-1", place="pid 7", fault="killed")
        log.add_from("chaos-a", [event_messages.to_message(fault, 1, 5.0)])
        assert event_messages.from_message(log.after(0)[0]) == fault

    def test_fields_that_are_no_object_are_refused(self):
        log = EventLog()
        for fields in ("[1", "[]", "7", '{"loss": NaN}'):
            bad = pb.Event(sequence=1, level="error", text="x", kind="k", fields=fields)
            with pytest.raises(UsageError, match="an event of the kind 'k': fields: "):
                log.add_from("chaos-a", [bad])
        assert log.after(0) == []

    def test_fields_that_do_not_fit_leave_the_text(self):
        log = EventLog()
        for fields in ('{"process": 7}', '{"nonsense": 1}'):
            bad = pb.Event(
                sequence=1, level="error", text="ps-1 lost", kind="server_lost", fields=fields
            )
            log.add_from(fields, [bad])
            kept = event_messages.from_message(log.after(0)[-1])
            assert kept == Other(name="server_lost", severity="error", message="ps-1 lost")

    def test_a_restarted_master_remembers_them(self):
        before, after = Lifecycle(wall_offset_s=0.0), Lifecycle(wall_offset_s=0.0)
        before.log.add_from("chaos-a", self.events(1, 2))
        before.rollbacks, before.records_rolled_back = 1, 640
        after.from_state(before.to_state(), 0.0)
        after.log.add_from("chaos-a", self.events(2, 3))
        assert [e.text for e in after.log.after(0)] == ["kill 3"]
        assert (after.rollbacks, after.records_rolled_back) == (1, 640)

    def test_an_event_that_is_none_is_refused_with_all_that_came_with_it(self):
        log = EventLog()
        with pytest.raises(UsageError, match="level 'loud'"):
            log.add_from("chaos-a", [*self.events(1), *self.events(2, level="loud")])
        assert log.after(0) == []

    def test_an_unknown_kind_is_refused(self):
        """Events are counted by kind, and a sender must not make new counters."""
        log = EventLog()
        with pytest.raises(UsageError, match="kind 'worker_vanished', which is unknown"):
            log.add_from("chaos-a", [pb.Event(sequence=1, level="info", kind="worker_vanished")])
        assert not log.counts

    def test_events_are_counted_by_kind_and_level_across_masters(self):
        before, after = Lifecycle(wall_offset_s=0.0), Lifecycle(wall_offset_s=0.0)
        before.note(JobFinished(), 1.0)
        before.log.add_from("chaos-a", self.events(1, 2))
        after.from_state(before.to_state(), 0.0)
        after.log.add_from("chaos-a", self.events(2, 3))
        assert after.log.counts == {("job_finished", "info"): 1, ("other", "warning"): 3}

    def test_what_is_kept_is_bounded(self):
        log = EventLog()
        for source in range(1000):
            log.add_from(f"chaos-{source}", self.events(1))
        assert len(log.sources) == 100
        for long in ({"text": "x" * 20_000}, {"fields": "x" * 20_000}):
            with pytest.raises(UsageError, match="an event of 20,000 characters"):
                log.add_from("long", [pb.Event(sequence=1, level="info", **long)])


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

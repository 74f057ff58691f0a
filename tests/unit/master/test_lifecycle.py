"""Events and rates."""

from __future__ import annotations

import pytest

from master.state.lifecycle import EventLog, Rates


def test_events_are_numbered_and_told_once():
    events = EventLog()
    for text in "abc":
        events.add("info", text, 1.0)
    assert [(e.sequence, e.text) for e in events.after(0)] == [(1, "a"), (2, "b"), (3, "c")]
    assert [e.text for e in events.after(2)] == ["c"]
    assert events.after(3) == []
    assert events.after(99) == []


def test_old_events_go():
    events = EventLog()
    for i in range(1500):
        events.add("info", str(i), 1.0)
    kept = events.after(0)
    assert len(kept) == 1000
    assert kept[-1].sequence == 1500
    assert [e.sequence for e in events.after(1498)] == [1499, 1500]


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

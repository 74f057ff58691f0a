"""What takes long is done less often."""

from __future__ import annotations

import pytest

from master.runtime.throttle import Throttle, of_notes, of_ticks


def test_it_takes_a_share_of_the_time_at_most() -> None:
    pace = Throttle(every_s=1.0, times=9, longest_s=10.0)
    assert pace.is_due(100.0)
    pace.took(0.001, 100.0)
    assert not pace.is_due(100.9)
    assert pace.until_due(100.25) == pytest.approx(0.75)
    assert pace.is_due(101.0)
    pace.took(0.5, 101.0)
    assert not pace.is_due(105.4)
    assert pace.is_due(105.5)
    assert pace.until_due(105.5) == 0.0
    pace.took(60.0, 200.0)  # however long it takes, it is done
    assert pace.is_due(210.0)


def test_the_pace_of_a_small_job_is_that_of_its_calls() -> None:
    ticks, notes = of_ticks(), of_notes()
    ticks.took(0.0002, 5.0)
    assert ticks.until_due(5.0) < 0.001
    notes.took(0.002, 5.0)
    assert notes.is_due(6.0)

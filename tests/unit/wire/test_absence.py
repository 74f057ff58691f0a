from __future__ import annotations

from torch_edl.wire.absence import Absence


def test_only_the_time_of_attempts_counts() -> None:
    now = 0.0
    absence = Absence(6.0, clock=lambda: now)
    now = 1.0
    assert absence.failed() == 1.0
    now = 7.0
    assert absence.failed() == 7.0
    now = 900.0  # the process was paused, and its call has failed meanwhile
    assert absence.failed() == 13.0
    absence.answered()
    assert absence.seconds == 0.0
    now = 1800.0
    assert absence.failed() == 6.0

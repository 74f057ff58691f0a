from __future__ import annotations

import pytest

from torch_edl.agent.ledger import MAX_LOST_IN_A_ROW, Ledger, Verdict


@pytest.mark.parametrize(
    ("code", "stopping", "verdict"),
    [
        (0, False, Verdict.DONE),
        (0, True, Verdict.DONE),
        (-9, False, Verdict.REPLACE),
        (-15, False, Verdict.REPLACE),
        (-15, True, Verdict.STOPPED),
        (1, True, Verdict.STOPPED),
        (1, False, Verdict.FAIL),
        (-11, False, Verdict.FAIL),
    ],
)
def test_what_follows_from_an_end(code: int, stopping: bool, verdict: Verdict) -> None:
    assert Ledger(max_restarts=0).judge(code, stopping=stopping, steps=0) is verdict


def test_failures_use_up_the_restarts_and_losses_do_not() -> None:
    ledger = Ledger(max_restarts=2)
    codes = [1, -9, -11, -15, 1]
    verdicts = [ledger.judge(code, stopping=False, steps=0) for code in codes]
    assert verdicts == [Verdict.REPLACE] * 4 + [Verdict.FAIL]


def test_losses_without_a_step_in_between_end_the_job() -> None:
    ledger = Ledger(max_restarts=0)
    for _ in range(MAX_LOST_IN_A_ROW):
        assert ledger.judge(-9, stopping=False, steps=7) is Verdict.REPLACE
    assert ledger.pause_s > 0
    assert ledger.judge(-9, stopping=False, steps=8) is Verdict.REPLACE, "there was progress"
    assert ledger.pause_s == 0
    for _ in range(MAX_LOST_IN_A_ROW - 1):
        assert ledger.judge(-9, stopping=False, steps=8) is Verdict.REPLACE
    assert ledger.judge(-9, stopping=False, steps=8) is Verdict.FAIL

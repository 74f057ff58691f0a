from __future__ import annotations

import pytest

from torch_edl.agent.ledger import MAX_LOST_IN_A_ROW, Ledger, Verdict


def judge(
    ledger: Ledger,
    code: int,
    *,
    stopping: bool = False,
    steps: int = 0,
    started_at: float | None = None,
    now: float = 0.0,
) -> Verdict:
    """A worker that is half a second old, if nothing else is said."""
    started_at = now - 0.5 if started_at is None else started_at
    return ledger.judge(code, stopping=stopping, steps=steps, started_at=started_at, now=now)


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
    assert judge(Ledger(max_restarts=0), code, stopping=stopping) is verdict


def test_failures_use_up_the_restarts_and_losses_do_not() -> None:
    ledger = Ledger(max_restarts=2)
    codes = [1, -9, -11, -15, 1]
    verdicts = [judge(ledger, code, now=now) for now, code in enumerate(codes)]
    assert verdicts == [Verdict.REPLACE] * 4 + [Verdict.FAIL]


def test_failures_of_one_round_count_once() -> None:
    ledger = Ledger(max_restarts=2)
    # What is known of the steps comes late.
    for now, steps in ((50, 100), (50, 100), (51, 103), (55, 103)):
        assert judge(ledger, 1, steps=steps, started_at=0, now=now) is Verdict.REPLACE
    assert ledger.restarts == 1
    # The second round: one of the replacements, then the other one.
    for started_at in (50.2, 51.5):
        assert judge(ledger, 1, steps=103, started_at=started_at, now=60) is Verdict.REPLACE
    assert ledger.restarts == 2
    assert judge(ledger, 1, steps=103, started_at=61, now=70) is Verdict.FAIL


def test_a_failure_long_after_another_one_is_a_round_of_its_own() -> None:
    ledger = Ledger(max_restarts=1)
    assert judge(ledger, 1, steps=100, now=50) is Verdict.REPLACE
    assert judge(ledger, 1, steps=900, now=500) is Verdict.FAIL


def test_losses_without_a_step_in_between_end_the_job() -> None:
    ledger = Ledger(max_restarts=0)
    for _ in range(MAX_LOST_IN_A_ROW):
        assert judge(ledger, -9, steps=7) is Verdict.REPLACE
    assert ledger.pause_s > 0
    assert judge(ledger, -9, steps=8) is Verdict.REPLACE, "there was progress"
    assert ledger.pause_s == 0
    for _ in range(MAX_LOST_IN_A_ROW - 1):
        assert judge(ledger, -9, steps=8) is Verdict.REPLACE
    assert judge(ledger, -9, steps=8) is Verdict.FAIL

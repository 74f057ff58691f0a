"""Rates of processes that do the same work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torch_edl.plugins.slowness.rates import Change, Slowness, Work


def compare(
    rates: Callable[[float], dict[int, float]], seconds: int, *, slowness: Slowness | None = None
) -> list[tuple[int, Change]]:
    """Let processes work at their rates for some seconds; the changes by time."""
    slowness = slowness or Slowness(least=40, least_busy_s=15)
    done: dict[int, float] = {}
    found = []
    for now in range(seconds):
        done = {id: done.get(id, 0.0) + rate for id, rate in rates(now).items()}
        work = {id: Work(amount, now + 1.0) for id, amount in done.items()}
        found += [(now, change) for change in slowness.sample(work, now)]
    return found


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ([10, 10, 10, 4.9], {3}),
        ([10, 10, 10, 5.1], set()),
        ([10, 3], {1}),
        ([10, 4], set()),  # the median of two is their mean
        ([10, 10, 10, 0], {3}),
        ([10], set()),
        ([1, 1, 0.1], set()),  # too little work for a comparison
        ([0, 0, 0], set()),
        ([100, 10, 10], set()),
        ([10] * 10 + [1, 2], {10, 11}),
    ],
)
def test_a_process_below_half_of_the_median_is_slow(rates: list[float], slow: set[int]) -> None:
    found = compare(lambda _: dict(enumerate(rates)), 60)
    assert {(now, v.id, v.is_slow, v.others) for now, v in found} == {
        (30, id, True, len(rates)) for id in slow
    }


def test_a_process_that_recovers_is_told_of_once() -> None:
    def rates(now: float) -> dict[int, float]:
        return {0: 10, 1: 10, 2: 1 if now < 60 else 9}

    (first, slow), (then, fast) = compare(rates, 120)
    assert (first, slow.is_slow, slow.share) == (30, True, pytest.approx(0.1))
    assert (80 <= then <= 90, fast.is_slow) == (True, False)


def test_a_short_pause_is_not_slow() -> None:
    assert not compare(lambda now: {0: 10, 1: 10, 2: 0 if 40 < now < 54 else 10}, 120)


def test_a_new_process_has_its_time() -> None:
    found = compare(lambda now: {0: 10, 1: 10} | ({2: 1} if now >= 50 else {}), 120)
    assert [(now, change.id) for now, change in found] == [(80, 2)]


def test_a_process_that_ends_is_forgotten() -> None:
    slowness = Slowness(least=40, least_busy_s=15)
    compare(lambda _: {0: 10, 1: 10, 2: 1}, 40, slowness=slowness)
    assert (set(slowness.slow), slowness.suspects) == ({2}, {2})
    slowness.sample({0: Work(400, 41), 1: Work(400, 41)}, 41)
    assert (slowness.slow, slowness.suspects) == ({}, set())


def test_counts_that_begin_anew_are_no_work() -> None:
    assert not compare(lambda now: {0: 10, 1: 10 if now != 50 else -500}, 120)


def test_an_idle_process_cannot_be_slow() -> None:
    """A server that is rarely called is not slow, although its calls take long."""
    slowness = Slowness(least=50, least_busy_s=1.5)
    for now in range(60):
        work = {0: Work(100 * now, 0.01 * now), 1: Work(100 * now, 0.04 * now)}
        assert not slowness.sample(work, now)

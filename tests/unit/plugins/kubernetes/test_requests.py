"""Calls in parallel, and when one is made again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import HANG_S
from torch_edl.plugins.kubernetes.cluster.failures import (
    ClusterError,
    ForbiddenError,
    InvalidError,
    NoAnswerError,
    QuotaError,
)
from torch_edl.plugins.kubernetes.cluster.requests import Pacing, Requests


@pytest.fixture
def requests() -> Iterator[Requests]:
    made = Requests()
    yield made
    made.close()


def pacing() -> Pacing:
    return Pacing(jitter=lambda: 1.0)


def again_at(
    found: Pacing, error: ClusterError, failures: int, now: float, give_up_at: float = math.inf
) -> float | None:
    return found.again_at(error, failures, now, give_up_at=give_up_at)


def test_a_call_that_got_no_answer_is_made_ever_more_rarely() -> None:
    found, error = pacing(), NoAnswerError("refused")
    waits = [again_at(found, error, failures, 100.0) for failures in range(1, 10)]
    assert [w and w - 100.0 for w in waits] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert found.rest_until == 0.0


def test_a_server_without_time_is_left_alone_by_all_calls() -> None:
    found = pacing()
    error = NoAnswerError("slow down", status=429, retry_after_s=7.0)
    assert again_at(found, error, 1, 100.0) == 107.0
    assert found.rest_until == 107.0
    again_at(found, NoAnswerError("slow down", status=429), 1, 103.0)
    assert found.rest_until == 107.0


def test_a_quota_is_asked_for_again_and_others_need_not_wait() -> None:
    found = pacing()
    assert again_at(found, QuotaError("full", status=403), 1, 0.0) == 5.0
    assert again_at(found, QuotaError("full", status=403), 9, 0.0) == 30.0
    assert found.rest_until == 0.0


def test_a_call_is_not_repeated_after_its_time() -> None:
    error = ForbiddenError("no", status=403)
    assert again_at(pacing(), error, 1, 9.0, give_up_at=10.0) == 9.5
    assert again_at(pacing(), error, 1, 10.0, give_up_at=10.0) is None


def failing(*errors: ClusterError) -> Callable[[], None]:
    """A call that fails with each of the errors in turn, and succeeds then."""
    left = list(errors)

    def make() -> None:
        if left:
            raise left.pop(0)

    return make


@pytest.mark.parametrize(
    "error", [NoAnswerError("first"), ForbiddenError("first", status=403)], ids=["away", "rejected"]
)
def test_a_call_is_repeated_while_its_owner_has_patience_and_tells_each_time(
    requests: Requests, error: ClusterError
) -> None:
    delayed: list[ClusterError] = []
    ended = threading.Event()
    requests.submit(
        failing(error),
        done=lambda error: error is None and ended.set(),
        delayed=delayed.append,
        patience_s=lambda error: HANG_S if error.status else 0.0,
    )
    assert ended.wait(HANG_S)
    assert delayed == [error]


def test_a_call_that_waits_is_made_at_once_if_asked(requests: Requests) -> None:
    make = failing(QuotaError("full", status=403, retry_after_s=10 * HANG_S))
    delayed, ended = threading.Event(), threading.Event()
    requests.submit(make, about="pod", done=lambda _: ended.set(), delayed=lambda _: delayed.set())
    assert delayed.wait(HANG_S)
    requests.hurry("another")
    requests.hurry("pod")
    assert ended.wait(HANG_S)


def test_calls_are_made_in_parallel(requests: Requests) -> None:
    together = threading.Barrier(8)
    done: list[ClusterError | None] = []
    ended = threading.Semaphore(0)

    def finish(error: ClusterError | None) -> None:
        done.append(error)
        ended.release()

    for _ in range(8):
        requests.submit(lambda: together.wait(HANG_S) and None, done=finish, delayed=lambda _: None)
    for _ in range(8):
        assert ended.acquire(timeout=HANG_S)
    assert done == [None] * 8


def test_a_call_that_waits_does_not_wait_for_one_that_lasts(requests: Requests) -> None:
    delayed, repeated, ends = threading.Event(), threading.Event(), threading.Event()
    make = failing(NoAnswerError("first"))
    requests.submit(make, done=lambda _: repeated.set(), delayed=lambda _: delayed.set())
    assert delayed.wait(HANG_S)
    requests.submit(lambda: ends.wait(HANG_S) and None, done=lambda _: None, delayed=lambda _: None)
    try:
        assert repeated.wait(HANG_S / 2)
    finally:
        ends.set()


def test_a_call_that_can_never_succeed_ends_with_its_error(requests: Requests) -> None:
    ended = threading.Event()
    found: list[ClusterError | None] = []

    def finish(error: ClusterError | None) -> None:
        found.append(error)
        ended.set()

    make = failing(InvalidError("no such thing", status=422))
    requests.submit(make, done=finish, delayed=lambda _: None)
    assert ended.wait(HANG_S)
    assert isinstance(found[0], InvalidError)


def test_what_waits_is_dropped_at_the_end() -> None:
    requests, tried = Requests(), threading.Event()

    def make() -> None:
        tried.set()
        raise NoAnswerError("away", retry_after_s=100.0)

    requests.submit(make, done=lambda _: None, delayed=lambda _: None)
    assert tried.wait(HANG_S)
    requests.close()
    assert not [t for t in threading.enumerate() if t.name == "requests"]

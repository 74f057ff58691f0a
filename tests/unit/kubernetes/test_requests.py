"""Calls in parallel, and when one is made again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.waiting import HANG_S
from torch_edl.kubernetes.failures import (
    ClusterError,
    ForbiddenError,
    InvalidError,
    NoAnswerError,
    QuotaError,
)
from torch_edl.kubernetes.requests import Pacing, Requests


@pytest.fixture
def requests() -> Iterator[Requests]:
    made = Requests()
    yield made
    made.close()


def pacing() -> Pacing:
    return Pacing(jitter=lambda: 1.0)


def test_a_call_that_got_no_answer_is_made_ever_more_rarely() -> None:
    found, error = pacing(), NoAnswerError("refused")
    waits = [found.again_at(error, failures, 100.0) for failures in range(1, 10)]
    assert [w and w - 100.0 for w in waits] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert found.rest_until == 0.0


def test_a_server_without_time_is_left_alone_by_all_calls() -> None:
    found = pacing()
    error = NoAnswerError("slow down", status=429, retry_after_s=7.0)
    assert found.again_at(error, 1, 100.0) == 107.0
    assert found.rest_until == 107.0
    found.again_at(NoAnswerError("slow down", status=429), 1, 103.0)
    assert found.rest_until == 107.0


def test_a_quota_is_asked_for_again_and_others_need_not_wait() -> None:
    found = pacing()
    assert found.again_at(QuotaError("full", status=403), 1, 0.0) == 5.0
    assert found.again_at(QuotaError("full", status=403), 9, 0.0) == 30.0
    assert found.rest_until == 0.0


@pytest.mark.parametrize("error", [ForbiddenError("no", status=403), InvalidError("x", status=422)])
def test_what_will_never_succeed_is_not_repeated(error: ClusterError) -> None:
    assert pacing().again_at(error, 1, 0.0) is None


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


def test_a_call_is_repeated_until_it_succeeds_and_tells_each_time(requests: Requests) -> None:
    failures = [NoAnswerError("first")]
    delayed: list[ClusterError] = []
    ended = threading.Event()

    def make() -> None:
        if failures:
            raise failures.pop()

    requests.submit(make, done=lambda error: error is None and ended.set(), delayed=delayed.append)
    assert ended.wait(HANG_S)
    assert [str(error) for error in delayed] == ["first"]


def test_a_call_that_waits_does_not_wait_for_one_that_lasts(requests: Requests) -> None:
    failures = [NoAnswerError("first")]
    delayed, repeated, ends = threading.Event(), threading.Event(), threading.Event()

    def fail_once() -> None:
        if failures:
            raise failures.pop()

    requests.submit(
        fail_once, done=lambda error: repeated.set(), delayed=lambda error: delayed.set()
    )
    assert delayed.wait(HANG_S)
    requests.submit(lambda: ends.wait(HANG_S) and None, done=lambda _: None, delayed=lambda _: None)
    try:
        assert repeated.wait(HANG_S / 2)
    finally:
        ends.set()


def test_a_call_that_can_never_succeed_ends_with_its_error(requests: Requests) -> None:
    ended = threading.Event()
    found: list[ClusterError | None] = []

    def make() -> None:
        raise InvalidError("no such thing", status=422)

    def finish(error: ClusterError | None) -> None:
        found.append(error)
        ended.set()

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

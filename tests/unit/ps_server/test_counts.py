"""Counters of a server that its heartbeat carries."""

from __future__ import annotations

import threading

import pytest

from torch_edl.config import TrainConfig
from torch_edl.ps_server.counts import CallCounts, Histogram
from torch_edl.ps_server.shard import ModelShard
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.server import Later, Quick, WouldWaitError


@pytest.fixture
def counts() -> CallCounts:
    return CallCounts(ModelShard(TrainConfig(), None, lambda: None), None)


def test_a_value_is_in_the_first_bucket_that_is_not_below_it() -> None:
    histogram = Histogram([0.0, 1.0, 4.0])
    for value in (0, 1, 2, 4, 5, 100):
        histogram.add(value)
    told = histogram.to_proto()
    assert list(told.counts) == [1, 1, 2, 2]
    assert told.sum == 112


def test_calls_are_counted_when_they_are_answered(counts: CallCounts) -> None:
    later = Later(Framed(pb.PushGradientsResponse()), lambda: None)
    push = counts.timed(lambda given, may_wait: later, "push_gradients")
    found = push(Framed(pb.PushGradientsRequest()), True)
    assert isinstance(found, Later)
    assert sum(counts.to_proto().push_s.counts) == 0
    found.wait()
    assert sum(counts.to_proto().push_s.counts) == 1

    def moved(given: Framed, may_wait: bool) -> Framed:
        raise WouldWaitError

    with pytest.raises(WouldWaitError):
        counts.timed(moved, "pull")(Framed(pb.PullRequest()), False)
    assert sum(counts.to_proto().pull_s.counts) == 0


@pytest.mark.parametrize(("quick", "pulls"), [(None, 0), (Quick(0, "pull", [], None), 1)])
def test_an_unusual_call_is_not_counted_twice(
    counts: CallCounts, quick: Quick | None, pulls: int
) -> None:
    assert counts.timed_quick(lambda pieces, memory, most: quick)([], None, 0) is quick
    assert sum(counts.to_proto().pull_s.counts) == pulls


def test_the_lag_is_the_age_of_the_oldest_change_that_waits(counts: CallCounts) -> None:
    assert counts.to_proto().journal_lag_s == 0
    inside, leave = threading.Event(), threading.Event()

    def commit() -> None:
        with counts.committing():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=commit)
    thread.start()
    inside.wait()
    first = counts.to_proto().journal_lag_s
    assert 0 < first < counts.to_proto().journal_lag_s
    leave.set()
    thread.join()
    assert counts.to_proto().journal_lag_s == 0

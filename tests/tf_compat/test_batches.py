"""The minibatches of a member of a ring, several made at once: each is what it would be alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tf_compat.ring import TaskBatches
from torch_edl.data.feeder import FeedError
from torch_edl.data.passes import Pass, Span
from torch_edl.data.task_reader import TaskReader, TaskRecords
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.interfaces import Batch

COUNT, TASK, SIZE = 300, 64, 7


class Numbers:
    """A source of the numbers below COUNT."""

    name = "numbers"
    count = COUNT
    size = mtime_ns = 0
    metadata = None

    def read(self, start: int, end: int) -> list[int]:
        return list(range(start, end))


class Made:
    """Makes minibatches of plain numbers, and says how many at once."""

    def __init__(self, leave_out: Any = lambda n: False, broken: int = -1) -> None:
        self.calls: list[int] = []
        self._leave_out, self._broken = leave_out, broken

    def __call__(self, records: Any) -> Batch:
        self.calls.append(len(records))
        if self._broken in records:
            raise FeedError(f"{self._broken}")
        kept = np.array([n for n in records if not self._leave_out(n)])
        return Batch(kept, -kept, len(kept))


def cut(batch: Batch, first: int, last: int) -> Batch:
    return Batch(batch.features[first:last], batch.labels[first:last], last - first)


def batches(make: Made) -> tuple[TaskBatches, Pass, TaskSpace]:
    source: Any = Numbers()
    space = TaskSpace([Shard.of(source)], TASK, epochs=2, seed=1, shuffle=True, batch_size=SIZE)
    data = Pass(records=COUNT, batch_size=SIZE, epochs=2)
    records = TaskRecords(space, TaskReader(lambda _: source, TASK, 3))
    return TaskBatches(records, data, space, make, cut), data, space


def parts(data: Pass, rank: int, world: int, start: int = 0) -> list[tuple[Span, int]]:
    found = []
    while start < data.total:
        part = data.part(start, rank, world)
        found += [(span, start) for span in part.spans]
        start += part.records
    return found


@pytest.mark.parametrize("leave_out", [lambda n: False, lambda n: n % 50 == 3])
def test_each_minibatch_is_what_it_would_be_alone(leave_out: Any) -> None:
    made = Made(leave_out)
    ours, data, _ = batches(made)
    alone, _, _ = batches(Made(leave_out))
    for rank, world in ((0, 2), (1, 2), (0, 1)):
        for span, start in parts(data, rank, world):
            batch, wanted = ours.take(span, start, rank, world), alone.sample(span)
            assert batch.size == wanted.size
            assert np.array_equal(batch.features, wanted.features)
            assert np.array_equal(batch.labels, -wanted.features)
    assert max(made.calls) == 16 * SIZE
    if not leave_out(3):  # the first ones are also made one by one, and compared
        assert min(made.calls[17:-1]) > SIZE


@pytest.mark.parametrize("move", [sorted, lambda records: np.random.permutation(records)])
def test_what_moves_records_makes_each_minibatch_alone(move: Any) -> None:
    """Otherwise records would be lost where the ring changes between two minibatches."""
    made = Made()
    ours, data, space = batches(lambda records: made(move(records)))  # type: ignore[arg-type]
    reader = TaskRecords(space, TaskReader(lambda _: Numbers(), TASK, 3))  # type: ignore[arg-type]
    for span, start in parts(data, 0, 2):
        taken = ours.take(span, start, 0, 2)
        wanted = [n for piece in space.pieces(span) for n in reader.__getitems__([piece])]
        assert sorted(taken.features) == sorted(wanted)
    assert max(made.calls[17:]) == SIZE


def test_a_step_that_is_taken_again_and_another_ring_begin_anew() -> None:
    ours, data, _ = batches(Made())
    alone, _, _ = batches(Made())
    (first, at), (second, then), *_ = parts(data, 0, 2)
    order = [(first, at, 2), (second, then, 2), (first, at, 2), (first, at, 2)]
    last, when = parts(data, 0, 1, start=then)[0]
    for span, start, world in [*order, (last, when, 1), (second, then, 2)]:
        taken = ours.take(span, start, 0, world)
        assert np.array_equal(taken.features, alone.sample(span).features)


def test_records_that_cannot_be_read_are_those_of_their_minibatch() -> None:
    ours, data, _ = batches(Made(broken=5))
    failed = []
    for span, start in parts(data, 0, 1):
        try:
            ours.take(span, start, 0, 1)
        except FeedError as error:
            failed.append((str(error), span))
    assert [text for text, _ in failed] == ["5", "5"]  # in each epoch
    assert all(last - first <= SIZE for _, (first, last) in failed)

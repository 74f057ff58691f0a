"""What the tasks of a pass are; and their shuffle, which is a bijection of (seed, epoch)."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from torch_edl.data.cuts import minibatch_cuts
from torch_edl.data.task_space import Shard, TaskSpace

SHARDS = [Shard("a", 10), Shard("empty", 0), Shard("b", 4), Shard("c", 7)]


def records(tasks) -> Counter[tuple[int, str, int]]:
    return Counter((t.epoch, t.shard, i) for t in tasks for i in range(t.start, t.end))


def every_record(shards, epochs: int) -> Counter[tuple[int, str, int]]:
    return Counter((e, s.name, i) for e in range(epochs) for s in shards for i in range(s.records))


class TestTaskSpace:
    def test_without_shuffle_tasks_follow_the_files(self):
        space = TaskSpace(SHARDS, 4)
        got = [(t.shard, t.start, t.end) for t in map(space.task, range(space.total))]
        assert got == [
            ("a", 0, 4),
            ("a", 4, 8),
            ("a", 8, 10),
            ("b", 0, 4),
            ("c", 0, 4),
            ("c", 4, 7),
        ]

    def test_a_rest_of_less_than_half_a_task_belongs_to_the_task_before_it(self):
        space = TaskSpace([Shard("a", 8_208), Shard("b", 16), Shard("c", 12_288)], 8_192)
        got = [(t.shard, t.start, t.end) for t in map(space.task, range(space.total))]
        assert got == [("a", 0, 8_208), ("b", 0, 16), ("c", 0, 8_192), ("c", 8_192, 12_288)]

    @given(
        counts=st.lists(st.integers(0, 40), max_size=5),
        per_task=st.integers(1, 12),
        batch=st.integers(1, 6),
        epochs=st.integers(1, 3),
        seed=st.integers(),
        shuffle=st.booleans(),
        max_steps=st.integers(0, 60),
    )
    @settings(max_examples=200, deadline=None)
    def test_every_record_once_an_epoch_and_prefix_sums(
        self, counts, per_task, batch, epochs, seed, shuffle, max_steps
    ):
        shards = [Shard(str(i), n) for i, n in enumerate(counts)]
        whole = TaskSpace(
            shards, per_task, epochs=epochs, seed=seed, shuffle=shuffle, batch_size=batch
        )
        tasks = [whole.task(i) for i in range(whole.total)]
        assert records(tasks) == every_record(shards, epochs)
        space = TaskSpace(
            shards,
            per_task,
            epochs=epochs,
            seed=seed,
            shuffle=shuffle,
            batch_size=batch,
            max_steps=max_steps,
        )
        cut = [space.task(i) for i in range(space.total)]
        steps = [space.steps_of(t.records) for t in cut]
        for id in range(space.total + 1):
            assert space.steps_before(id) == sum(steps[:id])
            assert space.records_before(id) == sum(t.records for t in cut[:id])
        unlimited = sum(whole.steps_of(t.records) for t in tasks)
        assert space.total_steps == (min(max_steps, unlimited) if max_steps else unlimited)
        # The cut takes whole minibatches off the end, and nothing else.
        assert cut[:-1] == tasks[: max(0, len(cut) - 1)]
        if cut:
            full = tasks[len(cut) - 1]
            assert (cut[-1].start, cut[-1].shard) == (full.start, full.shard)
            cuts = minibatch_cuts(full.records, batch)
            steps_cut = space.steps_of(cut[-1].records)
            assert minibatch_cuts(cut[-1].records, batch) == cuts[: steps_cut + 1]
        limited = space.total_records < whole.total_records
        assert space.epoch_of(space.total) == (cut[-1].epoch if limited else epochs)

    def test_epochs_differ_and_repeat_with_the_seed(self):
        def order(seed: int) -> list[list[int]]:
            space = TaskSpace([Shard("a", 50)], 1, epochs=2, seed=seed, shuffle=True)
            starts = [space.task(i).start for i in range(100)]
            return [starts[:50], starts[50:]]

        assert order(3) == order(3)
        assert order(3)[0] != order(3)[1]
        assert order(3) != order(4)

    def test_a_limit_in_a_large_space_is_found_without_a_walk(self):
        space = TaskSpace(
            [Shard(str(i), 10_001) for i in range(1000)],
            1,
            epochs=10**9,
            shuffle=True,
            max_steps=123_456_789_012_345,
        )
        assert space.total == 123_456_789_012_345


@given(records=st.integers(0, 3_000), batch=st.integers(1, 300))
def test_minibatches_are_few_and_even_and_a_prefix_has_the_same(records, batch):
    cuts = minibatch_cuts(records, batch)
    sizes = [end - at for at, end in pairwise(cuts)]
    assert (cuts[0], cuts[-1], len(sizes)) == (0, records, math.ceil(records / batch))
    assert sizes == sorted(sizes, reverse=True)
    assert not sizes or sizes[0] <= min(batch, sizes[-1] + 1)
    for number, end in enumerate(cuts):
        # Steps are counted, and a task that a limit cut is read, by the number of records alone.
        assert minibatch_cuts(end, batch) == cuts[: number + 1]

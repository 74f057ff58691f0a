"""Which records an update takes, and who has which of them: for all sizes, whoever is there."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_edl.data.passes import Pass, Span
from torch_edl.errors import UsageError
from torch_edl.pytorch.batches import Order

worlds = st.integers(1, 7)


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    fixed = draw(st.sampled_from([0, 0, 1, 5, 16, 40]))
    return Pass(
        records=draw(st.integers(1, 60)),
        batch_size=draw(st.integers(1, 9)),
        epochs=draw(st.integers(1, 3)),
        accumulate=1 if fixed else draw(st.integers(1, 3)),
        global_batch_size=fixed,
        drop_last=draw(st.booleans()),
    )


def updates(data: Pass, world_of: list[int]) -> list[tuple[int, int, list[list[Span]]]]:
    """(start, records, spans of each rank) of all updates; the world changes as listed."""
    found = []
    position = step = 0
    while True:
        world = world_of[step % len(world_of)]
        start = data.next_start(position, world)
        if start >= data.total:
            return found
        parts = [data.part(start, rank, world) for rank in range(world)]
        assert len({part.records for part in parts}) == 1
        found.append((start, parts[0].records, [list(part.spans) for part in parts]))
        assert parts[0].records > 0
        position = start + parts[0].records
        step += 1


@given(passes(), st.lists(worlds, min_size=1, max_size=4))
def test_parts_are_disjoint_in_order_and_cover_the_update(data: Pass, world_of: list[int]) -> None:
    for start, records, parts in updates(data, world_of):
        spans = [span for part in parts for span in part]
        assert spans[0][0] == start
        assert spans[-1][1] == start + records
        assert all(before[1] == after[0] for before, after in pairwise(spans))
        assert all(0 < last - first <= data.batch_size for first, last in spans)


@given(passes(), worlds)
def test_members_have_as_many_records_as_each_other(data: Pass, world: int) -> None:
    """But for the end of an epoch, which is cut into full minibatches as a DataLoader's is."""
    for _, records, parts in updates(data, [world]):
        sizes = [sum(last - first for first, last in part) for part in parts]
        if data.global_batch_size or records == data.update_size(world):
            assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


@given(passes(), worlds)
def test_minibatches_of_a_member_are_as_large_as_each_other(data: Pass, world: int) -> None:
    """One of a single record would have no variance, and its running statistics would count as
    those of a full one."""
    for _, records, parts in updates(data, [world]):
        if data.global_batch_size or records == data.update_size(world):
            sizes = [last - first for part in parts for first, last in part]
            assert max(sizes) - min(sizes) <= 1 or len({len(part) for part in parts}) > 1
            for part in parts:
                own = [last - first for first, last in part]
                assert max(own, default=0) - min(own, default=0) <= 1


@given(st.integers(1, 90), st.integers(1, 8), st.integers(1, 2), worlds)
def test_the_remainder_of_an_epoch_may_be_spread_over_its_updates(records, size, epochs, world):
    data = Pass(records=records, batch_size=size, epochs=epochs, even=True)
    cut = updates(data, [world])
    counts = [count for _, count, _ in cut]
    assert (sum(counts), len(counts)) == (data.total, epochs * math.ceil(records / size / world))
    assert max(counts) - min(counts) <= 1
    for _, _, parts in cut:
        sizes = [last - first for part in parts for first, last in part]
        assert max(sizes) - min(sizes) <= 1


@given(passes(), st.lists(worlds, min_size=1, max_size=4))
def test_updates_cover_each_epoch(data: Pass, world_of: list[int]) -> None:
    covered = [
        record
        for start, count, _ in updates(data, world_of)
        for record in range(start, start + count)
    ]
    assert len(covered) == len(set(covered))
    if not data.drop_last:
        assert covered == list(range(data.total))
        return
    # The rest of an epoch that is left out is less than an update, in a world that there is.
    largest = max(data.update_size(world) for world in world_of)
    for epoch in range(data.epochs):
        inside = [r for r in covered if epoch * data.records <= r < (epoch + 1) * data.records]
        assert inside == list(range(epoch * data.records, epoch * data.records + len(inside)))
        if largest <= data.records:
            assert data.records - len(inside) < largest


@given(passes(), worlds)
def test_no_update_reaches_into_the_next_epoch(data: Pass, world: int) -> None:
    for start, records, _ in updates(data, [world]):
        assert start // data.records == (start + records - 1) // data.records


@given(
    st.integers(1, 60), st.integers(1, 9), st.integers(1, 30), st.booleans(), worlds,
    st.lists(worlds, min_size=1, max_size=5),
)  # fmt: skip
def test_a_fixed_global_batch_size_makes_the_same_updates_in_any_world(
    records: int, batch_size: int, fixed: int, drop_last: bool, world: int, world_of: list[int]
) -> None:
    data = Pass(
        records=records, batch_size=batch_size, epochs=2, global_batch_size=fixed,
        drop_last=drop_last,
    )  # fmt: skip
    steady = [(start, count) for start, count, _ in updates(data, [world])]
    changing = [(start, count) for start, count, _ in updates(data, world_of)]
    assert steady == changing


@given(passes())
def test_drop_last_leaves_whole_updates(data: Pass) -> None:
    if data.drop_last:
        assert all(count == data.update_size(2) for _, count, _ in updates(data, [2]))


def test_accumulate_gives_each_member_so_many_minibatches() -> None:
    data = Pass(records=100, batch_size=4, accumulate=3)
    assert data.part(0, 1, 2).spans == [(12, 16), (16, 20), (20, 24)]
    # The end: 4 records, one minibatch, of the first member.
    assert data.part(96, 0, 2).spans == [(96, 100)]
    assert data.part(96, 1, 2).spans == []


def test_fewer_records_than_members_leave_some_without() -> None:
    data = Pass(records=3, batch_size=4, global_batch_size=8)
    assert [len(data.part(0, rank, 5).spans) for rank in range(5)] == [1, 1, 1, 0, 0]


def test_a_minibatch_larger_than_the_dataset_is_the_dataset() -> None:
    assert updates(Pass(records=3, batch_size=10, epochs=2), [1]) == [
        (0, 3, [[(0, 3)]]),
        (3, 3, [[(3, 6)]]),
    ]


def test_drop_last_with_an_update_larger_than_the_dataset_is_over_at_once() -> None:
    assert updates(Pass(records=3, batch_size=10, epochs=2, drop_last=True), [1]) == []


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 5), st.integers(0, 2))
def test_an_order_is_a_permutation_of_each_epoch_and_a_pure_function(
    records: int, seed: int, number: int, epoch: int
) -> None:
    data = Pass(records=records, batch_size=1, epochs=3, shuffle=True, seed=seed)
    first, last = epoch * records, (epoch + 1) * records
    whole = Order(data, number).indices((first, last))
    assert sorted(whole) == list(range(records))
    middle = first + records // 2
    other = Order(data, number)
    other.indices((0, records))  # whatever was asked before
    parts = other.indices((first, middle)) + other.indices((middle, last))
    assert parts == whole


def test_seed_pass_and_epoch_each_make_another_order() -> None:
    def order(seed: int, number: int, epoch: int) -> tuple[int, ...]:
        data = Pass(records=100, batch_size=1, epochs=2, shuffle=True, seed=seed)
        return tuple(Order(data, number).indices((epoch * 100, epoch * 100 + 100)))

    assert len({order(s, n, e) for s in (0, 1) for n in (0, 1) for e in (0, 1)}) == 8
    assert order(0, 0, 0) == order(0, 0, 0)


def test_without_shuffle_the_order_is_that_of_the_dataset() -> None:
    order = Order(Pass(records=5, batch_size=2, epochs=2), 0)
    assert order.indices((7, 9)) == [2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"epochs": 0},
        {"accumulate": 0},
        {"global_batch_size": -1},
        {"global_batch_size": 8, "accumulate": 2},
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(wrong: dict[str, int]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(UsageError, match=f"{name} {value}"):
        Pass(**{"records": 10, "batch_size": 2, **wrong})


@given(st.integers(1, 10**9), st.integers(1, 512), worlds)
def test_the_number_of_updates_is_what_arithmetic_says(
    records: int, batch_size: int, world: int
) -> None:
    data = Pass(records=records, batch_size=batch_size)
    last = (math.ceil(records / data.update_size(world)) - 1) * data.update_size(world)
    assert data.part(last, 0, world).records == records - last

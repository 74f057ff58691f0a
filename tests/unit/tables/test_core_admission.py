"""The compiled core: ids that are counted until they have a row."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tables.core_tables import any_ids, core_table, make, rows, run
from torch_edl import _core

pytestmark = pytest.mark.usefixtures("storage")

Counts = dict[int, tuple[int, int]]
"""Id to count and time of last use."""


def push(table: _core.Table, ids: np.ndarray, step: int) -> None:
    table.push(ids, np.ones((len(ids), table.dim), np.float32), 1.0, step)


def ids_of(table: _core.Table) -> set[int]:
    return set(table.scan(0, 1 << 20)[0].tolist())


def counts_left(table: _core.Table, most: int = 1000) -> Counts:
    """What the snapshot under way has not given yet."""
    found: Counts = {}
    while (chunk := table.next_counts(most)) is not None:
        assert len(chunk[0]) <= most
        ids, count, last_used = (part.tolist() for part in chunk)
        assert found.keys().isdisjoint(ids)
        found |= dict(zip(ids, zip(count, last_used, strict=True), strict=True))
    return found


def counts_of(table: _core.Table) -> Counts:
    table.begin_snapshot()
    found = counts_left(table)
    table.end_snapshot()
    return found


def test_an_id_has_no_row_until_it_was_pushed_often_enough() -> None:
    table = make(min_count=3)
    ids = np.arange(-500, 500)
    start = rows(table, ids, read_only=False)  # a pull counts nothing
    assert (table.size, table.counted) == (0, 0)
    for step in (1, 2):
        push(table, np.concatenate([ids, ids]), step)  # counts once
        assert (table.size, table.counted) == (0, 1000)
        assert (rows(table, ids, read_only=False) == start).all()
    push(table, ids[:600], 3)
    assert (table.size, table.counted) == (600, 400)
    np.testing.assert_array_equal(rows(table, ids[:600]), start[:600] - 1)
    assert (rows(table, ids[600:]) == start[600:]).all()
    table.begin_snapshot()
    chunk = table.next_chunk(1000)
    assert chunk is not None
    assert sorted(chunk[0].tolist()) == ids[:600].tolist()
    assert (chunk[4] == 3).all()


@given(st.lists(any_ids, max_size=10), st.integers(2, 4))
@settings(max_examples=50)
def test_counting_is_exact(batches: list[np.ndarray], enough: int) -> None:
    table = make(dim=1, min_count=enough)
    seen: Counts = {}
    for step, batch in enumerate(batches, 1):
        ids = np.unique(batch)
        push(table, ids, step)
        for i in ids.tolist():
            seen[i] = (seen.get(i, (0, 0))[0] + 1, step)
    admitted = {i for i, (count, _) in seen.items() if count >= enough}
    assert ids_of(table) == admitted
    assert counts_of(table) == {i: seen[i] for i in seen.keys() - admitted}
    ids = np.array(sorted(admitted), np.int64)
    trained = np.array([[seen[i][0] - enough + 1] for i in ids.tolist()]).reshape(-1, 1)
    start = _core.init_rows("t", 7, "normal", {"std": 1.0}, ids, 1)
    np.testing.assert_allclose(rows(table, ids), start - trained, atol=1e-5)


def test_many_ids_are_counted_in_less_than_thirty_bytes_each() -> None:
    table, ids = make(dim=16, min_count=2), np.arange(400_000) * 7_919
    empty = table.bytes
    push(table, ids, 1)
    assert table.counted == len(ids)
    assert table.bytes - empty < 30 * len(ids)
    push(table, ids[::2].copy(), 2)
    assert (table.size, table.counted) == (200_000, 200_000)
    assert counts_of(table) == dict.fromkeys(ids[1::2].tolist(), (1, 1))
    counted = table.bytes
    push(table, ids[::2] + 1, 3)  # in the memory of those that were admitted
    assert table.bytes < counted * 1.001


def test_the_first_update_of_the_optimizer_is_the_one_that_admits() -> None:
    """The buffer of momentum starts as the first gradient, not as zero."""
    sgd = _core.Optimizer("sgd", {"lr": 1.0, "momentum": 0.9, "dampening": 0.5})
    table, plain = (core_table("t", 2, "zeros", {}, 0, sgd, min_count=enough) for enough in (2, 0))
    ids, ones = np.array([5]), np.ones((1, 2), np.float32)
    for step in (1, 2, 3):
        table.push(ids, ones, 1.0, step)
    for step in (1, 2):
        plain.push(ids, ones, 1.0, step)
    np.testing.assert_array_equal(rows(table, ids), rows(plain, ids))


def test_a_frozen_table_counts_nothing() -> None:
    table = core_table("f", 2, "constant", {"value": 3.0}, 0, None, min_count=2)
    assert (rows(table, np.arange(4), read_only=False) == 3).all()
    assert (table.size, table.counted) == (4, 0)


def test_a_count_that_cannot_be_counted_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"min_count 16777216: must be 16777215 or less"):
        make(min_count=1 << 24)


# ---- eviction ----


def test_ids_that_no_push_named_for_too_long_are_forgotten() -> None:
    table = make(min_count=2, max_age=10)
    old, new = np.arange(3000), np.arange(3000, 6000)
    push(table, old, 1)
    push(table, new, 12)
    table.pull(old)  # a pull keeps rows young, but no counts
    assert sorted(table.evict(12).tolist()) == old.tolist()
    assert set(counts_of(table)) == set(new.tolist())
    push(table, old, 13)
    assert table.size == 0
    push(table, np.concatenate([old, new]), 14)
    assert table.size == 6000


def test_a_bound_holds_for_rows_and_for_counted_ids_each() -> None:
    table = make(min_count=2, max_rows=1000)
    hot = np.arange(-500, 0)
    for step in range(1, 101):
        push(table, np.concatenate([hot, np.arange(step * 50, step * 50 + 50)]), step)
        gone = table.evict(step, aged=False)
        assert not set(gone.tolist()) & set(hot.tolist())
        assert table.counted <= 1000
    assert ids_of(table) == set(hot.tolist())
    left = counts_of(table)
    assert len(left) >= 1000 - 1000 // 16
    assert min(left) >= 5050 - len(left) - 50  # the latest ones; those of one push are of one age


def test_a_bound_in_bytes_covers_the_counts() -> None:
    for dim, most in ((1, 300_000), (16, 3_000_000)):
        table = make(dim, "adagrad", min_count=2, max_bytes=most)
        for step in range(1, 301):
            new = np.arange(step * 500, step * 500 + 500)
            push(table, np.concatenate([new, new - 500]), step)
            table.evict(step, aged=False)
            assert table.bytes <= most * 1.05 + 500 * 256
        assert table.size <= table.bound
        assert table.counted <= table.bound
        assert table.bytes >= most * 0.4
    with pytest.raises(ValueError, match="max_bytes 1000: the smallest table has"):
        make(min_count=2, max_bytes=1000)


def test_remove_forgets_just_the_counts_that_it_is_told() -> None:
    table, ids = make(min_count=2), np.arange(10_000)
    push(table, ids, 1)
    table.remove(np.array([5, 5, 77, -1, 20_000]))
    assert set(counts_of(table)) == set(ids.tolist()) - {5, 77}


@pytest.mark.parametrize("min_count", [0, 3])
@pytest.mark.parametrize("limits", [{"max_rows": 300}, {"max_age": 20}, {}])
def test_replaying_pushes_and_evictions_gives_the_same_rows_and_counts(
    limits: dict[str, int], min_count: int
) -> None:
    """A log has pushes and the ids that went; pulls, which keep rows young, are not in it."""
    rng = np.random.default_rng(3)
    live, replayed = (make(kind="adagrad", min_count=min_count, **limits) for _ in range(2))
    for step in range(1, 400):
        ids = np.unique(rng.zipf(1.2, 100) % 5000).astype(np.int64)
        live.pull(np.unique(rng.integers(0, 400, 50)))
        grads = rng.standard_normal((len(ids), 4), dtype=np.float32)
        live.push(ids, grads, 0.1, step)
        replayed.push(ids, grads, 0.1, step)
        replayed.remove(live.evict(step))
    assert (live.counted > 100) == (min_count > 0)
    assert counts_of(live) == counts_of(replayed)
    assert ids_of(replayed) <= ids_of(live)  # others were only pulled
    assert min_count == 0 or ids_of(live) == ids_of(replayed)
    np.testing.assert_array_equal(rows(live, np.arange(5000)), rows(replayed, np.arange(5000)))


# ---- snapshots ----


def test_a_snapshot_has_the_counts_as_they_were() -> None:
    """Some ids are counted on, admitted, evicted and counted anew while it is written."""
    table, ids = make(min_count=3, max_age=5), np.arange(-6000, 6000)
    push(table, ids, 1)
    push(table, ids[::2].copy(), 2)
    before = {i: (1 + (i % 2 == 0), 1 + (i % 2 == 0)) for i in ids.tolist()}
    table.begin_snapshot()
    first = table.next_counts(700)
    assert first is not None
    push(table, ids[::3].copy(), 3)  # counts some on, and admits some
    push(table, np.arange(10_000, 20_000), 4)
    table.evict(8)  # forgets some
    push(table, ids[1::2].copy(), 9)
    ids_given, count, last_used = (part.tolist() for part in first)
    given = dict(zip(ids_given, zip(count, last_used, strict=True), strict=True))
    rest = counts_left(table)
    assert given.keys().isdisjoint(rest)
    assert given | rest == before
    assert table.next_chunk(1000) is None or len(table.next_chunk(1000) or ()) == 0
    table.end_snapshot()
    assert table.next_counts(10) is None


def test_counts_that_are_loaded_go_on() -> None:
    rng = np.random.default_rng(0)
    table = make(kind="adam", min_count=4)
    for step in range(1, 6):
        ids = np.unique(rng.integers(0, 3000, 2000))
        table.push(ids, rng.standard_normal((len(ids), 4), dtype=np.float32), 0.1, step)
    table.begin_snapshot()
    counts, chunk = counts_left(table), table.next_chunk(10_000)
    table.end_snapshot()
    assert chunk is not None
    assert len(counts) > 500
    other = make(kind="adam", min_count=4)
    numbers = np.array(list(counts.values()))
    other.load_counts(np.array(list(counts)), numbers[:, 0].copy(), numbers[:, 1].copy())
    other.load(*chunk)
    other.load_counts(chunk[0][:5], chunk[4][:5], chunk[3][:5])  # of rows: nothing
    assert counts_of(other) == counts
    for step in range(6, 9):
        ids = np.unique(rng.integers(0, 3000, 2000))
        grads = rng.standard_normal((len(ids), 4), dtype=np.float32)
        for each in (table, other):
            each.push(ids, grads, 0.1, step)
    assert counts_of(other) == counts_of(table)
    np.testing.assert_array_equal(rows(other, np.arange(3000)), rows(table, np.arange(3000)))


def test_counts_fit_a_table_with_another_min_count() -> None:
    ids, count, used = np.arange(4), np.array([1, 2, 3, 4]), np.zeros(4, np.int64)
    without, lower, higher = (make(min_count=enough) for enough in (0, 3, 6))
    for table in (without, lower, higher):
        table.load_counts(ids, count, used)
    assert (without.counted, lower.counted, higher.counted) == (0, 4, 4)
    push(lower, ids, 1)
    push(higher, ids, 1)
    assert ids_of(lower) == {1, 2, 3}
    assert ids_of(higher) == set()
    table = make(min_count=3)
    table.load_counts(ids, count, used)
    table.load(ids[:2], np.ones((2, 4), np.float32))  # a row that is loaded was admitted
    assert set(counts_of(table)) == {2, 3}
    assert (rows(table, ids[:2]) == 1).all()


def test_threads_that_count_lose_no_id() -> None:
    table, ids = make(dim=2, min_count=41), np.arange(2000)
    start = rows(table, ids)
    rng = np.random.default_rng(0)
    orders = [rng.permutation(2000) for _ in range(4)]
    steps = iter(range(1, 1000))
    lock = threading.Lock()

    def work(order: np.ndarray) -> None:
        for _ in range(20):
            with lock:
                step = next(steps)
            push(table, order, step)

    run(work, orders)
    assert (table.size, table.counted) == (2000, 0)
    np.testing.assert_allclose(rows(table, ids), start - 40, atol=1e-3)

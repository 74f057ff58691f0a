"""The compiled core: tables under threads, snapshots, scans."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.unit.tables.core_tables import INT64, core_table, make, rows, run
from torch_edl import _core

pytestmark = pytest.mark.usefixtures("storage")


def snapshot(table: _core.Table, max_rows: int = 1000) -> list[np.ndarray]:
    """All chunks put together, sorted by id."""
    chunks = []
    while (chunk := table.next_chunk(max_rows)) is not None:
        assert len(chunk[0]) <= max_rows
        chunks.append(chunk)
    table.end_snapshot()
    if not chunks:
        return [np.empty(0, np.int64)] * 5
    whole = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
    order = np.argsort(whole[0])
    return [a[order] for a in whole]


def test_threads_that_push_the_same_rows_lose_no_update() -> None:
    table = make(dim=3)
    ids = np.arange(3000)
    start = rows(table, ids)
    ones = np.ones((3000, 3), np.float32)
    rng = np.random.default_rng(0)
    orders = [rng.permutation(3000) for _ in range(4)]

    def push(order: np.ndarray) -> None:
        for step in range(1, 26):
            table.push(order, ones, 1.0, step)
            table.pull(order)

    run(push, orders)
    np.testing.assert_allclose(rows(table, ids), start - 100, atol=1e-3)
    assert table.size == 3000


def test_threads_that_insert_lose_no_row() -> None:
    table = make(dim=1)

    def insert(k: int) -> None:
        for start in range(0, 40_000, 1000):
            ids = np.arange(start, start + 1000) * 3 + k
            table.pull(ids)
            table.pull(np.arange(start, start + 1000))

    run(insert, range(3))
    expected = {i * 3 + k for i in range(40_000) for k in range(3)} | set(range(40_000))
    assert table.size == len(expected)


def test_a_snapshot_is_the_table_as_it_was() -> None:
    table = make(kind="adagrad", max_age=2)
    ids = np.arange(-3000, 3000)
    table.push(ids, np.ones((6000, 4), np.float32), 0.1, 1)
    before = rows(table, ids)
    table.begin_snapshot()
    first = table.next_chunk(700)
    # What changes, comes or goes while the walk is under way is not in it.
    table.push(ids[::2].copy(), np.ones((3000, 4), np.float32), 0.1, 9)
    table.pull(np.arange(10_000, 11_000))
    table.evict(9)
    table.pull(ids[1::2].copy())
    rest = snapshot(table)
    got = dict(zip(first[0].tolist(), first[1], strict=True))
    got |= dict(zip(rest[0].tolist(), rest[1], strict=True))
    assert len(first[0]) + len(rest[0]) == 6000
    assert sorted(got) == ids.tolist()
    np.testing.assert_array_equal(np.stack([got[i] for i in ids.tolist()]), before)
    assert (rest[2] == 1).all()  # the sums of squares of one update
    assert (rest[3] == 1).all()
    assert (rest[4] == 1).all()


@pytest.mark.parametrize(("rows_of", "dim"), [(60_000, 4), (70, 5000)])
def test_rows_that_are_saved_in_turns_are_all_given(rows_of: int, dim: int) -> None:
    """The memory of a saved row that was given is used for the next one."""
    table = make(dim=dim)
    ids, third = np.arange(rows_of), rows_of // 3
    before = rows(table, ids, read_only=False)
    table.begin_snapshot()
    chunks = []
    for start in (0, third, 2 * third):
        some = ids[start : start + third].copy()
        table.push(some, np.ones((len(some), dim), np.float32), 1.0, 1)
        chunks.append(table.next_chunk(third // 2))
    rest = snapshot(table)
    got = np.concatenate([*(c[0] for c in chunks), rest[0]])
    vectors = np.concatenate([*(c[1] for c in chunks), rest[1]])
    assert sorted(got.tolist()) == ids.tolist()
    np.testing.assert_array_equal(vectors[np.argsort(got)], before)


def test_load_restores_what_a_snapshot_gave() -> None:
    table = make(kind="adam")
    rng = np.random.default_rng(0)
    for step in range(1, 4):
        ids = rng.integers(INT64.min, INT64.max, 500)
        table.push(ids, rng.standard_normal((500, 4), dtype=np.float32), 0.1, step)
    table.begin_snapshot()
    saved = snapshot(table)
    other = make(kind="adam")
    other.load(*saved)
    grads = rng.standard_normal((len(saved[0]), 4), dtype=np.float32)
    for t in (table, other):
        t.push(saved[0], grads, 0.1, 4)
        t.begin_snapshot()
    for ours, theirs in zip(snapshot(table), snapshot(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_snapshot_under_fire_holds_each_row_once_and_unmixed() -> None:
    """Every push adds one to all four elements of each row: a torn row would show."""
    table = core_table("t", 4, "zeros", {}, 0, _core.Optimizer("sgd", {"lr": 1.0}))
    ids = np.arange(20_000)
    minus = np.full((len(ids), 4), -1, np.float32)
    table.push(ids, minus, 1.0, 1)
    stop = threading.Event()

    def push() -> None:
        while not stop.is_set():
            table.push(ids, minus, 1.0, 2)

    thread = threading.Thread(target=push)
    thread.start()
    try:
        for _ in range(5):
            table.begin_snapshot()
            got = snapshot(table, max_rows=3000)
            assert (got[0] == ids).all()
            assert (got[1] == got[1][:, :1]).all()
            assert (got[1][:, 0] == got[4]).all()  # count and value are of one moment
            assert got[1].max() - got[1].min() <= 1  # at most one push was half-way at the cut
    finally:
        stop.set()
        thread.join()


def test_a_scan_gives_each_row_once() -> None:
    table = core_table("t", 2, "normal", {"std": 1.0}, 3, None)
    assert table.scan(0, 10)[2] == -1
    ids = np.arange(-3000, 3000)
    values = table.pull(ids)
    seen, rows, cursor = [], [], 0
    while cursor >= 0:
        some, vectors, cursor = table.scan(cursor, 700)
        assert len(some) <= 700
        seen.append(some)
        rows.append(vectors)
    order = np.argsort(np.concatenate(seen))
    assert np.array_equal(np.concatenate(seen)[order], ids)
    assert np.array_equal(np.concatenate(rows)[order], values)
    for wrong in (-2, 2**62):
        with pytest.raises(ValueError, match="cursor"):
            table.scan(wrong, 10)


def test_a_snapshot_that_was_given_up_leaves_nothing_to_the_next_one() -> None:
    table = make()
    ids = np.arange(5000)
    rows(table, ids, read_only=False)
    table.begin_snapshot()
    table.push(ids, np.ones((5000, 4), np.float32), 1.0, 1)
    assert len(table.next_chunk(700)[0]) == 700
    now = rows(table, ids)
    table.begin_snapshot()
    got = snapshot(table)
    np.testing.assert_array_equal(got[0], ids)
    np.testing.assert_array_equal(got[1], now)


def test_the_most_updated_rows_are_found() -> None:
    table = make()
    rng = np.random.default_rng(0)
    expected: dict[int, int] = {}
    for step in range(1, 41):
        ids = np.unique(rng.zipf(1.2, 400).astype(np.int64))
        ids = np.concatenate([ids, [INT64.min, -1]])
        table.push(ids, np.ones((len(ids), 4), np.float32), 0.1, step)
        for id in ids.tolist():
            expected[id] = expected.get(id, 0) + 1
    table.pull(np.arange(-5000, -4000))  # rows without an update
    table.remove(np.array([INT64.min]))
    del expected[INT64.min]
    ids, updates = table.most_updated(20)
    assert updates.tolist() == sorted(expected.values(), reverse=True)[:20]
    assert updates.tolist() == [expected[id] for id in ids.tolist()]
    assert sorted(table.most_updated(10**6)[0].tolist()) == sorted(expected)
    assert [len(found) for found in make().most_updated(5)] == [0, 0]
    with pytest.raises(ValueError, match="must be 1 or more"):
        table.most_updated(0)

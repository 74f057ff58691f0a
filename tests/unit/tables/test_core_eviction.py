"""The compiled core: rows that go, by age and beyond the bound of a table."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tables.core_tables import any_ids, core_table, make, rows, run
from torch_edl import _core

pytestmark = pytest.mark.usefixtures("storage")


def push(table: _core.Table, ids: np.ndarray, step: int) -> list[int]:
    """Adds -1 to the rows, and evicts as a server does; returns the ids that went."""
    table.push(ids, np.ones((len(ids), table.dim), np.float32), 1.0, step)
    return table.evict(step, aged=False).tolist()


def ids_of(table: _core.Table) -> list[int]:
    return sorted(table.scan(0, 1 << 20)[0].tolist())


# ---- age ----


def test_rows_unused_for_too_long_are_evicted_and_start_anew() -> None:
    table = make(max_age=10)
    old, new = np.arange(0, 3000), np.arange(3000, 6000)
    start = rows(table, old)
    table.push(old, np.ones((3000, 4), np.float32), 1.0, 1)
    table.push(new, np.ones((3000, 4), np.float32), 1.0, 12)
    assert len(table.evict(11)) == 0
    assert sorted(table.evict(12).tolist()) == old.tolist()
    assert table.size == 3000
    changed = rows(table, new)
    assert (rows(table, old) == start).all()
    # The freed rows are used again, and those that stayed can still be found.
    rows(table, old, read_only=False)
    assert table.size == 6000
    assert (rows(table, new) == changed).all()


def test_a_pull_keeps_a_row_young() -> None:
    table = make(max_age=10)
    table.push(np.array([1, 2]), np.ones((2, 4), np.float32), 1.0, 1)
    table.push(np.array([3]), np.ones((1, 4), np.float32), 1.0, 9)
    table.pull(np.array([1]))
    table.pull(np.array([2]), read_only=True)
    assert table.evict(15).tolist() == [2]


@given(any_ids, any_ids)
@settings(max_examples=30)
def test_eviction_loses_no_other_row(stale: np.ndarray, fresh: np.ndarray) -> None:
    table = make(dim=1, max_age=1)
    table.push(stale, np.ones((len(stale), 1), np.float32), 1.0, 1)
    table.push(fresh, np.ones((len(fresh), 1), np.float32), 1.0, 9)
    gone = set(stale.tolist()) - set(fresh.tolist())
    assert set(table.evict(9).tolist()) == gone
    assert table.size == len(set(fresh.tolist()))
    assert sorted(table.scan(0, 1000)[0].tolist()) == sorted(set(fresh.tolist()))


def test_a_round_for_age_goes_on_over_several_calls() -> None:
    table = make(dim=1, max_age=10)
    many = np.arange(300_000)
    table.push(many, np.ones((len(many), 1), np.float32), 1.0, 1)
    table.push(np.array([-1]), np.ones((1, 1), np.float32), 1.0, 50)
    parts = [table.evict(50, aged=True)]
    while len(part := table.evict(50, aged=False)):
        parts.append(part)
    assert len(parts) > 10
    assert sorted(np.concatenate(parts).tolist()) == many.tolist()
    assert ids_of(table) == [-1]


# ---- the bound ----


def test_the_least_recently_used_rows_go_first() -> None:
    table = make(max_rows=1000)
    gone: list[int] = []
    for step in range(1, 101):
        gone += push(table, np.arange(step * 50, step * 50 + 50), step)
        assert table.size <= 1000
    left = ids_of(table)
    assert sorted(gone + left) == list(range(50, 101 * 50))
    assert max(gone) // 50 <= min(left) // 50  # those of one push are of one age
    assert table.size >= 1000 - 1000 // 16


def test_a_row_that_is_pulled_stays_and_one_that_went_starts_anew() -> None:
    table = make(max_rows=64)
    kept, other = np.arange(8), np.arange(8, 16)
    start = rows(table, np.arange(16))
    push(table, np.arange(16), 1)
    for step in range(2, 40):
        table.pull(kept)
        push(table, np.arange(step * 16, step * 16 + 16), step)
    np.testing.assert_array_equal(rows(table, kept), start[:8] - 1)
    np.testing.assert_array_equal(rows(table, other), start[8:])
    table.pull(kept, read_only=True)  # an evaluation keeps no row
    for step in range(40, 60):
        push(table, np.arange(step * 16, step * 16 + 16), step)
    np.testing.assert_array_equal(rows(table, kept), start[:8])


@given(st.lists(any_ids, max_size=8), st.integers(1, 200))
@settings(max_examples=50)
def test_a_bounded_table_does_what_a_dict_does_that_loses_what_it_says(
    batches: list[np.ndarray], bound: int
) -> None:
    table = make(dim=1, max_rows=bound)
    model: dict[int, int] = {}
    used: dict[int, int] = {}
    for step, batch in enumerate(batches, 1):
        ids = np.unique(batch)
        for i in ids.tolist():
            model[i] = model.get(i, 0) - 1
            used[i] = step
        gone = push(table, ids, step)
        for i in gone:
            del model[i]
        latest = max((used.pop(i) for i in gone), default=0)
        assert latest <= min(used.values(), default=step)
        assert table.size == len(model) <= bound
    keys = np.array(sorted(model), np.int64)
    start = _core.init_rows("t", 7, "normal", {"std": 1.0}, keys, 1)
    expected = start + np.array([[model[k]] for k in keys.tolist()], np.float32).reshape(-1, 1)
    np.testing.assert_allclose(rows(table, keys), expected, atol=1e-5)


def test_a_large_table_stays_below_its_bound_and_keeps_what_is_used() -> None:
    """Ages are sampled, and several calls share the work."""
    bound = 200_000
    table = make(dim=1, max_rows=bound)
    hot = np.arange(-1000, 0)
    for step in range(1, 151):
        ids = np.concatenate([hot, np.arange(step * 4000, step * 4000 + 4000)])
        push(table, ids, step)
        assert table.size <= bound + len(ids)
    assert table.size >= bound * 0.9
    kept = np.array(ids_of(table))
    assert set(hot.tolist()) <= set(kept.tolist())
    newest = 150 * 4000 + 4000 - kept[kept >= 0]
    assert newest.max() < bound * 1.15  # not exactly the least recently used, but nearly


def test_a_bound_in_bytes_holds_for_rows_and_index() -> None:
    for dim, kind, most in ((4, "sgd", 100_000), (16, "adagrad", 3_000_000), (1, "sgd", 5_000_000)):
        table = make(dim, kind, max_bytes=most)
        for step in range(1, 301):
            push(table, np.arange(step * 500, step * 500 + 500), step)
            assert table.bytes <= most * 1.05 + 500 * 256
        assert table.size <= table.bound
        if table.bound < 300 * 500:
            assert table.bytes >= most * 0.6
    assert make(max_bytes=100_000, max_rows=7).bound == 7
    with pytest.raises(ValueError, match="max_bytes 1000: the smallest table has"):
        make(max_bytes=1000)
    with pytest.raises(ValueError, match="max_rows -1: must be 0 or more"):
        make(max_rows=-1)


def test_a_frozen_table_keeps_its_rows_and_makes_none_at_its_bound() -> None:
    table = core_table("f", 2, "normal", {"std": 1.0}, 0, None, max_rows=100)
    ids = np.arange(100, dtype=np.int64)
    table.load(ids, np.full((100, 2), 5, np.float32))
    unseen = np.arange(1000, 1100)
    expected = _core.init_rows("f", 0, "normal", {"std": 1.0}, unseen, 2)
    assert (rows(table, unseen, read_only=False) == expected).all()
    assert len(table.evict(1)) == 0
    assert table.size == 100
    assert (rows(table, ids) == 5).all()


def test_remove_takes_just_the_rows_that_it_is_told() -> None:
    table = make()
    ids = np.arange(10_000)
    start = rows(table, ids)
    push(table, ids, 1)
    table.remove(np.array([5, 5, 77, -1, 9999, 20_000]))
    assert table.size == 9997
    now = rows(table, ids)
    np.testing.assert_array_equal(now[[5, 77, 9999]], start[[5, 77, 9999]])
    rest = np.setdiff1d(ids, [5, 77, 9999])
    np.testing.assert_array_equal(now[rest], start[rest] - 1)


def test_a_snapshot_has_the_rows_that_go_while_it_is_written() -> None:
    table = make(max_rows=5000)
    ids = np.arange(5000)
    push(table, ids, 1)
    before = rows(table, ids)
    table.begin_snapshot()
    chunks = [table.next_chunk(300)]
    for step in range(2, 12):
        push(table, np.arange(step * 5000, step * 5000 + 1000), step)
    while (chunk := table.next_chunk(1000)) is not None:
        chunks.append(chunk)
    table.end_snapshot()
    found = np.concatenate([c[0] for c in chunks])
    order = np.argsort(found)
    assert found[order].tolist() == ids.tolist()
    np.testing.assert_array_equal(np.concatenate([c[1] for c in chunks])[order], before)


def test_a_table_of_many_times_its_bound_keeps_what_was_used_last() -> None:
    """The thread that evicts may have to wait for a core while others push."""
    table = make(dim=2, max_rows=6000)
    hot = np.arange(-500, 0)
    start = rows(table, hot)
    for step in range(1, 201):
        ids = np.concatenate([hot, np.arange(700) + step * 700])
        table.push(ids, np.ones((1200, 2), np.float32), 1.0, step)
    assert table.size == 140_500
    while table.size > table.bound:
        assert table.evict(200, aged=False).min(initial=0) >= 0
    np.testing.assert_allclose(rows(table, hot), start - 200, atol=1e-3)


def test_threads_that_push_and_evict_lose_no_row_that_is_used() -> None:
    # The rows of four pushes at once fit: where the newest one has not begun, those of the others
    # may look newer than what all of them use.
    table = make(dim=2, max_rows=6000)
    hot = np.arange(-500, 0)
    start = rows(table, hot)
    steps = iter(range(1, 1_000_000))
    lock = threading.Lock()

    def work(k: int) -> None:
        for i in range(50):
            with lock:
                step = next(steps)
            push(table, np.concatenate([hot, np.arange(700) + (i * 4 + k) * 700]), step)

    run(work, range(4))
    np.testing.assert_allclose(rows(table, hot), start - 200, atol=1e-3)
    while table.size > table.bound:
        table.evict(1000, aged=False)
    assert table.size == len(ids_of(table)) >= 5000


def test_no_call_takes_long() -> None:
    """The work of one call is bounded, whatever the size of the table."""
    table = make(dim=8, max_rows=400_000)
    began = time.thread_time()
    table.load(np.arange(1_000_000), np.zeros((1_000_000, 8), np.float32))
    before, loaded = table.size, time.thread_time()
    went = table.evict(1, aged=False)
    ended = time.thread_time()
    assert 0 < len(went) <= 1 << 14
    assert table.size == before - len(went)
    assert ended - loaded < (loaded - began) / 4  # a fiftieth on an idle machine

"""What a second master relies on, whatever the store: keys are written together or not at all, and
a lock fences its last owner off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from master.runtime.store.base import Store
from master.runtime.store.lock import Lock
from master.runtime.store.sqlite import SqliteStore
from torch_edl.errors import StoreConflictError

Reopen = Callable[[], Store]


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Reopen]:
    """Opens the same store again, as another process would."""
    opened: list[Store] = []

    def make() -> Store:
        opened.append(SqliteStore(tmp_path / "state.sqlite"))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Reopen) -> Store:
    return reopen()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_key_that_is_not_there(store: Store) -> None:
    assert store.get("a") is None


def test_what_is_written_is_read_also_by_others(store: Store, reopen: Reopen) -> None:
    value = bytes(range(256))
    revision = store.commit({"a": value}, {})
    assert store.get("a") == (value, revision)
    assert reopen().get("a") == (value, revision)


def test_revisions_grow_over_all_keys(store: Store) -> None:
    first = store.commit({"a": b"1"}, {})
    second = store.commit({"b": b"2"}, {})
    third = store.commit({"a": b"", "b": b"4"}, {})
    assert 0 < first < second < third
    assert [store.get("a"), store.get("b")] == [(b"", third), (b"4", third)]


@pytest.mark.parametrize("wrong", [0, 1 << 40])
def test_a_write_with_another_revision_is_rejected_as_a_whole(store: Store, wrong: int) -> None:
    first = store.commit({"a": b"1"}, {"a": 0})
    with pytest.raises(StoreConflictError):
        store.commit({"a": b"2", "b": b"2"}, {"a": wrong})
    assert store.get("a") == (b"1", first)
    assert store.get("b") is None
    assert store.commit({"b": b"3"}, {"a": first, "b": 0}) > first


def test_a_key_that_is_to_exist(store: Store) -> None:
    with pytest.raises(StoreConflictError):
        store.commit({"b": b"1"}, {"a": 5})


def test_a_large_value_and_many_keys(store: Store) -> None:
    puts = {f"key-{n}": bytes([n]) * 1000 for n in range(50)} | {"large": b"x" * (1 << 20)}
    store.commit(puts, {})
    assert all(found.value == puts[key] for key in puts if (found := store.get(key)))


def test_of_many_writers_with_one_revision_one_wins(reopen: Reopen) -> None:
    revision = reopen().commit({"count": b"0"}, {})
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        mine = reopen()
        start.wait()
        try:
            mine.commit({"count": str(number).encode()}, {"count": revision})
            outcomes.append("won")
        except StoreConflictError:
            outcomes.append("lost")

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]


# ---- the lock ----


def test_the_lock_is_exclusive_until_no_renewal_comes(store: Store, reopen: Reopen) -> None:
    clock = Clock()
    mine, other = Lock(store, "me", clock=clock), Lock(reopen(), "you", clock=clock)
    mine.acquire()
    assert mine.valid_until == clock.now + store.lock_ttl_s
    for _ in range(3):
        with pytest.raises(StoreConflictError, match="held by me"):
            other.acquire()
        clock.now += store.lock_ttl_s - 0.1
        mine.renew()
    with pytest.raises(StoreConflictError):
        other.acquire()
    clock.now += store.lock_ttl_s
    other.acquire()
    assert other.token > mine.token


def test_who_was_paused_finds_that_another_has_the_lock(store: Store, reopen: Reopen) -> None:
    clock = Clock()
    mine, other = Lock(store, "me", clock=clock), Lock(reopen(), "you", clock=clock)
    mine.acquire()
    mine.put({"a": b"mine"})
    with pytest.raises(StoreConflictError):
        other.acquire()
    clock.now += store.lock_ttl_s
    other.acquire()
    for late in (mine.renew, lambda: mine.put({"a": b"late"}), mine.release):
        with pytest.raises(StoreConflictError):
            late()
    assert mine.valid_until <= clock.now, "it knew already that another might have it"
    other.put({"a": b"yours"})
    assert store.get("a").value == b"yours"
    with pytest.raises(StoreConflictError, match="held by you"):
        mine.acquire()


def test_who_was_cut_off_goes_on_if_nobody_took_the_lock(store: Store) -> None:
    clock = Clock()
    mine = Lock(store, "me", clock=clock)
    mine.acquire()
    clock.now += 100
    mine.renew()
    assert mine.valid_until == clock.now + store.lock_ttl_s
    mine.put({"a": b"1"})


def test_the_lock_of_an_owner_that_is_dead_is_taken_at_once(store: Store, reopen: Reopen) -> None:
    mine, other = Lock(store, "me"), Lock(reopen(), "you")
    mine.acquire()
    with pytest.raises(StoreConflictError):
        other.acquire(is_dead=lambda owner: owner == "another")
    other.acquire(is_dead=lambda owner: owner == "me")
    with pytest.raises(StoreConflictError):
        mine.put({"a": b"late"})


def test_a_lock_that_is_given_back_is_free(store: Store, reopen: Reopen) -> None:
    mine, other = Lock(store, "me"), Lock(reopen(), "you")
    mine.acquire()
    mine.release()
    with pytest.raises(StoreConflictError):
        mine.put({"a": b"late"})
    other.acquire()
    assert other.token > mine.token


def test_of_many_that_ask_for_a_free_lock_one_gets_it(reopen: Reopen) -> None:
    got: list[str] = []
    start = threading.Barrier(6)

    def ask(name: str) -> None:
        lock = Lock(reopen(), name)
        start.wait()
        try:
            lock.acquire()
            got.append(name)
        except StoreConflictError:
            pass

    threads = [threading.Thread(target=ask, args=(f"m{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(OSError, match=r"state\.sqlite"):
        SqliteStore(path)

"""What a second master relies on: compare-and-set, and a lock that fences its last owner off."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from master.runtime.store import Store
from torch_edl.errors import StoreConflictError


@pytest.fixture
def reopen(tmp_path):
    """Opens the same store again, as another process would."""
    opened = []

    def make() -> Store:
        opened.append(Store(tmp_path / "state.sqlite"))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Callable[[], Store]) -> Store:
    return reopen()


def test_the_lock_of_an_owner_that_is_dead_is_taken_at_once(store: Store, reopen) -> None:
    token = store.acquire("me", 10, 100.0)
    assert store.holder() == "me"
    other = reopen()
    with pytest.raises(StoreConflictError):
        other.acquire("you", 10, 101.0, instead_of="another")
    newer = other.acquire("you", 10, 101.0, instead_of="me")
    assert newer > token
    assert store.holder() == "you"
    with pytest.raises(StoreConflictError):
        store.put("k", b"late", 0, token=token)
    other.release(newer)
    assert store.holder() == ""


def test_a_key_that_is_not_there(store):
    assert store.get("a") is None


def test_what_is_written_is_read_also_by_others(store, reopen):
    token = store.acquire("me", 10, 0.0)
    revision = store.put("a", b"\x00one", 0, token=token)
    assert store.get("a") == (b"\x00one", revision)
    assert reopen().get("a") == (b"\x00one", revision)


def test_revisions_grow_over_all_keys(store):
    token = store.acquire("me", 10, 0.0)
    first = store.put("a", b"1", 0, token=token)
    second = store.put("b", b"2", 0, token=token)
    third = store.put("a", b"3", first, token=token)
    assert 0 < first < second < third


@pytest.mark.parametrize("expected", [0, 999])
def test_compare_and_set_refuses_another_revision(store, expected):
    token = store.acquire("me", 10, 0.0)
    revision = store.put("a", b"1", 0, token=token)
    with pytest.raises(StoreConflictError, match=f"revision {revision}, expected was {expected}"):
        store.put("a", b"2", expected, token=token)
    assert store.get("a") == (b"1", revision)


def test_a_new_key_must_be_expected_new(store):
    token = store.acquire("me", 10, 0.0)
    with pytest.raises(StoreConflictError):
        store.put("a", b"1", 5, token=token)
    assert store.get("a") is None


def test_the_lock_is_exclusive_until_its_time_is_over(store, reopen):
    other = reopen()
    token = store.acquire("me", 10, 100.0)
    with pytest.raises(StoreConflictError, match="me"):
        other.acquire("you", 10, 109.9)
    assert other.acquire("you", 10, 110.0) > token


def test_a_renewal_keeps_the_token_and_the_lock(store, reopen):
    token = store.acquire("me", 10, 100.0)
    assert store.acquire("me", 10, 105.0) == token
    with pytest.raises(StoreConflictError):
        reopen().acquire("you", 10, 114.0)


def test_a_stale_token_is_refused(store, reopen):
    other = reopen()
    stale = store.acquire("me", 10, 100.0)
    revision = store.put("a", b"mine", 0, token=stale)
    token = other.acquire("you", 10, 200.0)
    with pytest.raises(StoreConflictError, match="stale"):
        store.put("a", b"again", revision, token=stale)
    assert other.put("a", b"yours", revision, token=token) > revision


def test_without_the_lock_nothing_is_written(store):
    with pytest.raises(StoreConflictError):
        store.put("a", b"1", 0, token=0)
    token = store.acquire("me", 10, 0.0)
    store.release(token)
    with pytest.raises(StoreConflictError):
        store.put("a", b"1", 0, token=token)


def test_release_lets_another_in_at_once_but_only_by_the_owner(store, reopen):
    other = reopen()
    token = store.acquire("me", 10, 0.0)
    other.release(token + 1)
    with pytest.raises(StoreConflictError):
        other.acquire("you", 10, 1.0)
    store.release(token)
    assert other.acquire("you", 10, 1.0) > token


def test_of_many_writers_with_one_revision_one_wins(reopen):
    store = reopen()
    token = store.acquire("me", 1000, 0.0)
    revision = store.put("count", b"0", 0, token=token)
    outcomes = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        mine = reopen()
        start.wait()
        try:
            mine.put("count", str(number).encode(), revision, token=token)
            outcomes.append("won")
        except StoreConflictError:
            outcomes.append("lost")

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]


def test_a_file_that_is_no_store_is_named(tmp_path):
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(OSError, match=r"state\.sqlite"):
        Store(path)

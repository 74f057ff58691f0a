"""What a second master relies on, whatever the store: keys are written together or not at all, and
a lock fences its last owner off."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from master.runtime.store import Lock, SqliteStore
from torch_edl.errors import StoreConflictError
from torch_edl.interfaces import Entry, Store
from torch_edl.plugins.etcd.store import EtcdAccess, EtcdStore
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.master.state import ConfigMapStore

if TYPE_CHECKING:  # it needs the client of Kubernetes, an extra
    from tests.cluster.cluster import Cluster

Reopen = Callable[[], Store]


@pytest.fixture(params=["sqlite", "etcd", "etcds", "configmap"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Opens the same store again, as another process would."""
    opened: list[Store] = []
    if request.param == "etcd":
        endpoint = request.getfixturevalue("shared_etcd").endpoint
    elif request.param == "etcds":
        endpoint = request.getfixturevalue("locked_etcd").endpoint
    elif request.param == "configmap":
        namespace = request.getfixturevalue("config_map")

    def make() -> Store:
        if request.param == "sqlite":
            opened.append(SqliteStore(tmp_path / "state.sqlite"))
        elif request.param == "etcd":
            opened.append(EtcdStore([endpoint], f"/tests/{tmp_path.name}"))
        elif request.param == "configmap":
            opened.append(ConfigMapStore(Api.of_kubeconfig(namespace=namespace), "state"))
        else:
            given: EtcdAccess = request.getfixturevalue("access")
            opened.append(EtcdStore([endpoint], f"/tests/{tmp_path.name}", given))
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


def test_a_value_that_cannot_be_compressed(store: Store) -> None:
    value = os.urandom(1_000_000 if isinstance(store, ConfigMapStore) else 1_400_000)
    store.commit({"a": value}, {})
    assert store.get("a").value == value


def test_what_is_cleared_is_gone_and_revisions_grow_on(store: Store, reopen: Reopen) -> None:
    first = store.commit({"a": b"1", "b": b"2"}, {})
    with pytest.raises(StoreConflictError):
        store.clear({"a": first + 1})
    assert reopen().get("b") == (b"2", first)
    store.clear({"a": first})
    assert store.get("a") is None
    assert reopen().get("b") is None
    assert store.commit({"a": b"3"}, {"a": 0}) > first


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
        mine.put({})
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
    for late in (lambda: mine.put({}), lambda: mine.put({"a": b"late"}), mine.release):
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
    mine.put({})
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
    start = threading.Barrier(6)

    def ask(lock: Lock) -> int:
        start.wait()
        try:
            lock.acquire()
        except StoreConflictError:
            return 0
        return 1

    locks = [Lock(reopen(), f"m{i}") for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(ask, locks)) == 1


def test_many_can_open_a_new_store_at_once(reopen: Reopen) -> None:
    start = threading.Barrier(6)

    def read(_: int) -> Entry | None:
        start.wait()
        return reopen().get("a")

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [None] * 6


def test_who_ends_leaves_nothing(store: Store, reopen: Reopen) -> None:
    mine, other = Lock(store, "me"), Lock(reopen(), "you")
    mine.acquire()
    mine.put({"a": b"1"})
    mine.clear()
    assert [store.get(key) for key in ("a", "lock", "beat")] == [None] * 3
    with pytest.raises(StoreConflictError):
        mine.put({"a": b"late"})
    other.acquire()
    assert other.token > mine.token
    with pytest.raises(StoreConflictError):
        mine.clear()


class Late(Store):
    """Does not answer some writes, which then are done late, if at all."""

    def __init__(self, store: Store) -> None:
        self.store, self.lock_ttl_s = store, store.lock_ttl_s
        self.under_way: list[tuple[Mapping[str, bytes], Mapping[str, int]]] = []
        self.answers = True

    def get(self, key: str) -> Entry | None:
        return self.store.get(key)

    def commit(self, puts: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        if self.answers:
            return self.store.commit(puts, expected)
        self.under_way.append((puts, expected))
        raise OSError("no answer")

    def clear(self, expected: Mapping[str, int]) -> None:
        self.store.clear(expected)

    def close(self) -> None:
        self.store.close()


def test_a_write_that_comes_late_replaces_nothing_newer(store: Store) -> None:
    late = Late(store)
    mine = Lock(late, "me")
    mine.acquire()
    mine.put({"a": b"1"})
    for done_before in (True, False):
        late.answers = False
        with pytest.raises(OSError, match="no answer"):
            mine.put({"a": b"old"})
        late.answers = True
        write = late.under_way.pop()
        if done_before:
            store.commit(*write)
        mine.put({"a": b"new"})
        with pytest.raises(StoreConflictError):
            store.commit(*write)
        assert store.get("a").value == b"new"
        mine.put({"a": b"newer"})


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(OSError, match=r"state\.sqlite"):
        SqliteStore(path)


def test_a_state_that_no_config_map_holds_is_rejected_with_the_fix(config_map: str) -> None:
    store = ConfigMapStore(Api.of_kubeconfig(namespace=config_map), "state")
    first = store.commit({"a": b"1"}, {})
    with pytest.raises(OSError, match=r"1 MiB; .*--state-claim NAME or --store URL"):
        store.commit({"a": os.urandom(1_100_000)}, {"a": first})
    assert store.get("a") == (b"1", first)
    store.close()


def test_writes_of_one_master_are_one_call_each(cluster: Cluster, config_map: str) -> None:
    store = ConfigMapStore(Api.of_kubeconfig(namespace=config_map), "state")
    lock = Lock(store, "me")
    lock.acquire()
    before = cluster.calls()
    for number in range(3):
        assert not lock.is_due
        lock.put({"a": bytes([number])})
    assert cluster.calls() - before == 3
    store.close()

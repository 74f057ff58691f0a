from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from master.runtime import persistence
from master.runtime.persistence import Persistence
from master.runtime.service import Service
from master.runtime.store.lock import Lock
from master.runtime.store.sqlite import SqliteStore
from master.state.job.job import Job
from master.state.scripts.script_fleet import ScriptFleet
from master.state.workforce.servers import ServerCommand
from tests.waiting import HANG_S, wait_for
from torch_edl.config import CheckpointConfig, ClusterConfig, JobConfig
from torch_edl.errors import StoreConflictError, UsageError
from torch_edl.processes.process_group import start_time


class Renewals(Lock):
    """Tells when the lock was renewed."""

    renewed: threading.Semaphore

    def renew(self) -> None:
        super().renew()
        self.renewed.release()


@pytest.fixture
def service(tmp_path: Path) -> Service:
    config = JobConfig(
        name="j",
        kind="script",
        model_file="/train.py",
        cluster=ClusterConfig(),
        checkpoint=CheckpointConfig(),
    )
    fleet = ScriptFleet(ServerCommand(job="j"), workers=1, servers=0)
    job = Job(config, fleet, folder=tmp_path)
    job.start(time.monotonic())
    return Service(job, clock=time.monotonic, log_path=lambda role, id: "", cores=1)


def keeper_of(service: Service, lock: Lock, folder: Path, told: list[str]) -> Persistence:
    return Persistence(
        service,
        lock,
        secret="s",
        status_file=folder / "status.json",
        superseded=told.append,
    )


def test_a_status_in_which_only_the_time_changes_is_written_once(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "_EVERY_S", 0.01)
    lock = Renewals(SqliteStore(tmp_path / "state.sqlite"), "me")
    lock.renewed = threading.Semaphore(0)
    lock.acquire()
    file = tmp_path / "status.json"
    keeper = keeper_of(service, lock, tmp_path, [])
    for _ in range(2):  # the first one is written then
        assert lock.renewed.acquire(timeout=HANG_S)
    first = json.loads(file.read_text())
    file.unlink()
    for _ in range(2):
        assert lock.renewed.acquire(timeout=HANG_S)
    assert not file.exists()
    keeper.close()
    service.close()
    assert json.loads(file.read_text()) == first


def test_what_was_noted_earlier_never_replaces_what_was_noted_later(
    tmp_path: Path, service: Service
) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    keeper = keeper_of(service, persistence.acquire(store, "j"), tmp_path, [])
    with service.changed:
        earlier = keeper.note()
        service.job.reason = "newer"
        later = keeper.note()
    keeper.write(later)
    keeper.write(earlier)
    left = persistence.left_behind(store, "s")
    assert left is not None
    assert left["job"]["reason"] == "newer"
    assert persistence.left_behind(store, "of another run") is None
    keeper.close()


def test_what_is_kept_is_on_the_disk(tmp_path: Path) -> None:
    """After a loss of power, too: files are removed because of it."""
    store = SqliteStore(tmp_path / "state.sqlite")
    (level,) = store._connection.execute("PRAGMA synchronous").fetchone()
    store.close()
    assert level == 2, "FULL: a commit returns when the disk has it"


def test_a_master_whose_lock_was_taken_gives_way_and_leases_nothing(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "_EVERY_S", 0.01)
    lock = persistence.acquire(SqliteStore(tmp_path / "state.sqlite"), "j")
    told: list[str] = []
    keeper = keeper_of(service, lock, tmp_path, told)
    other = Lock(SqliteStore(tmp_path / "state.sqlite"), "other")
    other.acquire(is_dead=lambda owner: True)
    wait_for(lambda: told)
    assert service.leases_until <= time.monotonic() + lock.store.lock_ttl_s
    keeper.close()
    other.store.close()


def test_a_master_that_was_paused_asks_the_store_where_nothing_has_changed(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints and processes are those of another master by now, perhaps."""
    monkeypatch.setattr(persistence, "_EVERY_S", 3600.0)
    clock, told = Clock(), list[str]()
    lock = Lock(SqliteStore(tmp_path / "state.sqlite"), "me", clock=clock)
    lock.acquire()
    keeper = keeper_of(service, lock, tmp_path, told)

    def keep() -> None:
        with service.changed:
            noted = keeper.note()
        keeper.write(noted)

    keep()
    before = lock.store.get("beat")
    keep()
    assert lock.store.get("beat") == before, "while the lock is certain, nothing is asked"
    other = Lock(SqliteStore(tmp_path / "state.sqlite"), "other")
    other.acquire(is_dead=lambda owner: True)
    clock.now += lock.store.lock_ttl_s
    with pytest.raises(StoreConflictError):
        keep()
    assert told
    keeper.close()
    other.store.close()


class Clock:
    """Of one who waits and is slow: each sleep takes ``slow`` times as long as it should."""

    def __init__(self, slow: float = 1.0) -> None:
        self.now = 100.0
        self._slow = slow

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += self._slow * seconds


def test_the_lock_of_a_dead_process_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    ours = persistence.acquire(store, "j")
    entry = store.get("lock")
    assert entry is not None
    machine = entry.value.decode().partition("/")[0]
    ours.release()
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = f"{machine}/{process.pid}/{start_time(process.pid)}"
        Lock(store, owner).acquire()
        process.kill()
    clock = Clock()
    persistence.acquire(store, "j", clock=clock, sleep=clock.sleep)
    assert clock.now == Clock().now
    store.close()


@pytest.mark.parametrize("slow", [1, 10, 1000])
def test_the_lock_of_a_dead_process_elsewhere_is_waited_for(tmp_path: Path, slow: float) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    Lock(store, "elsewhere/1/1").acquire()
    clock = Clock(slow)
    persistence.acquire(store, "j", clock=clock, sleep=clock.sleep)
    assert clock.now >= Clock().now + store.lock_ttl_s
    store.close()


def test_the_lock_of_a_master_that_lives_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    other, clock = Lock(store, "elsewhere/1/1"), Clock()
    other.acquire()

    def sleep(seconds: float) -> None:
        other.renew()
        clock.sleep(seconds)

    with pytest.raises(UsageError, match="--job-name j: another master of this job is running"):
        persistence.acquire(store, "j", clock=clock, sleep=sleep)
    store.close()

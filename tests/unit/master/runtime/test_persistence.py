from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from master.runtime import loop
from master.runtime.clock import Clock as JobClock
from master.runtime.effects import Effects
from master.runtime.job_files import EventFile
from master.runtime.persistence import StateWriter, left_behind
from master.runtime.service import Service
from master.runtime.store import Lock, SqliteStore, acquire
from master.state.job.restart import FORMAT
from tests.unit.master.script_jobs import ring_of_two
from tests.unit.master.world import World, running
from tests.waiting import HANG_S, wait_for
from torch_edl.errors import EdlError, StoreConflictError, UsageError
from torch_edl.processes.launcher import ProcessExit
from torch_edl.processes.process_group import start_time
from torch_edl.wire import master_pb2 as pb


class Renewals(Lock):
    """Tells when the lock was renewed."""

    renewed: threading.Semaphore

    def put(self, puts: Mapping[str, bytes]) -> None:
        super().put(puts)
        if not puts:
            self.renewed.release()


@pytest.fixture
def w() -> World:
    return World(kind="script", strategy="allreduce")


class Kept:
    """The state of a job below a folder, written at once, and by a thread if ``every_s`` pass."""

    def __init__(
        self, w: World, lock: Lock, folder: Path, monkeypatch: pytest.MonkeyPatch, every_s: float
    ) -> None:
        monkeypatch.setattr(loop, "_EVERY_S", every_s)
        self.told: list[str] = []
        self.writer = StateWriter(lock, secret="s", superseded=self.told.append)
        self.service = Service(
            w.job, clock=lambda: w.now, log_path=lambda role, id: "", cores=1, writer=self.writer
        )
        self.status = folder / "status.json"
        self._thread = loop.StateThread(self.service, self.writer, status_file=self.status)

    def close(self) -> None:
        self._thread.close()
        self.writer.close()


def test_a_status_in_which_only_the_time_changes_is_written_once(
    tmp_path: Path, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Renewals(SqliteStore(tmp_path / "state.sqlite"), "me")
    lock.renewed = threading.Semaphore(0)
    lock.acquire()
    kept = Kept(w, lock, tmp_path, monkeypatch, 0.01)
    for _ in range(2):  # the first one is written then
        assert lock.renewed.acquire(timeout=HANG_S)
    first = json.loads(kept.status.read_text())
    kept.status.unlink()
    for _ in range(2):
        assert lock.renewed.acquire(timeout=HANG_S)
    assert not kept.status.exists()
    kept.close()
    last = json.loads(kept.status.read_text())
    for each in (*first["processes"], *last["processes"]):
        each.pop("usage")
    assert last == first


def test_what_was_noted_earlier_never_replaces_what_was_noted_later(
    tmp_path: Path, w: World
) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    writer = StateWriter(acquire(store, "j"), secret="s", superseded=pytest.fail)
    earlier = writer.note(w.job)
    w.job.reason = "newer"
    later = writer.note(w.job)
    writer.write(later)
    writer.write(earlier)
    left = left_behind(store, "s")
    assert left is not None
    assert left["job"]["reason"] == "newer"
    assert left_behind(store, "of another run") is None
    found = store.get("state")
    assert found is not None
    old = json.loads(found.value)
    old["format"] -= 1
    store.commit({"state": json.dumps(old).encode()}, {})
    with pytest.raises(EdlError, match=rf"{FORMAT - 1}.*{FORMAT}"):
        left_behind(store, "s")
    writer.close()


def test_a_state_in_which_only_the_time_changes_is_not_written_again(tmp_path: Path) -> None:
    """Neither by the clock nor by heartbeats and reports, of which each was a synced write."""
    for number, w in enumerate((running(workers=2, spares=1), ring_of_two())):
        store = SqliteStore(tmp_path / f"{number}.sqlite")
        writer = StateWriter(acquire(store, "j"), secret="s", superseded=pytest.fail)
        revisions = set()
        for _ in range(4):
            w.now += 1
            if w.config.kind == "script":
                w.beat(0), w.beat(1)
            else:
                w.beat(0), w.beat(1)
                for server in w.fleet.alive("ps"):
                    w.server_beat(server)
            w.tick(1)
            writer.write(writer.note(w.job))
            found = store.get("state")
            assert found is not None
            revisions.add(found.revision)
        assert len(revisions) == 1
        writer.close()


def test_the_lock_expires_while_a_machine_is_suspended(tmp_path: Path) -> None:
    """In a time namespace whose boot lies a day back, as after a day of suspension: the clock of
    the lock follows the time since the boot, and not the one that a suspension stops."""
    code = (
        "import sys, time; from master.runtime.store import Lock, SqliteStore;"
        "lock = Lock(SqliteStore(sys.argv[1]), 'me'); lock.acquire();"
        "print(lock.valid_until - time.monotonic())"
    )
    words = ["unshare", "--time", "--boottime", "86400", "--fork", sys.executable, "-c", code]
    done = subprocess.run([*words, str(tmp_path / "s")], capture_output=True, text=True)
    if done.stderr.startswith("unshare"):
        pytest.skip(f"no time namespaces here: {done.stderr.strip()}")
    assert float(done.stdout) > 86_000, done.stderr


def test_what_is_kept_is_on_the_disk(tmp_path: Path) -> None:
    """After a loss of power, too: files are removed because of it."""
    store = SqliteStore(tmp_path / "state.sqlite")
    (level,) = store._connection.execute("PRAGMA synchronous").fetchone()
    store.close()
    assert level == 2, "FULL: a commit returns when the disk has it"


def test_a_master_whose_lock_was_taken_gives_way_and_leases_nothing(
    tmp_path: Path, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = acquire(SqliteStore(tmp_path / "state.sqlite"), "j")
    kept = Kept(w, lock, tmp_path, monkeypatch, 0.01)
    other = Lock(SqliteStore(tmp_path / "state.sqlite"), "other")
    other.acquire(is_dead=lambda owner: True)
    wait_for(lambda: kept.told)
    kept.close()
    other.store.close()


class Untouched:
    """A launcher that reports the end of a worker, and starts and stops nothing."""

    def poll(self) -> list[ProcessExit]:
        return [ProcessExit(role="worker", id=1, signal=9)]

    def log_path(self, role: str, id: int) -> str:
        return ""


def test_a_superseded_master_that_wakes_up_leases_nothing_and_touches_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, clock = running(workers=2), Clock()
    lock = Lock(SqliteStore(tmp_path / "state.sqlite"), "me", clock=clock)
    lock.acquire()
    kept = Kept(w, lock, tmp_path, monkeypatch, 3600.0)
    kept.service.keep()
    before = lock.store.get("beat")
    kept.service.keep()
    assert lock.store.get("beat") == before, "while the lock is certain, nothing is asked"
    other = Lock(SqliteStore(tmp_path / "state.sqlite"), "other")
    other.acquire(is_dead=lambda owner: True)
    lease = pb.LeaseRequest(worker_id=0, want=1, incarnation=1)
    monkeypatch.setattr("master.runtime.service._LEASE_WAIT_S", 0.0)
    ask = kept.service.handlers()["Lease"]
    context = SimpleNamespace(is_active=lambda: True)
    assert ask(lease, context).leases
    clock.now += lock.store.lock_ttl_s
    assert ask(lease, context).next == pb.LeaseResponse.WAIT
    stop, events = SimpleNamespace(name="", count=0), EventFile(tmp_path / "events.jsonl")
    with pytest.raises(StoreConflictError):  # before it starts another worker
        loop.run(kept.service, Untouched(), Effects(token=""), stop, events, JobClock(clock))
    assert kept.told
    kept.close()
    other.store.close()


class Clock:
    """A slow clock: each sleep takes ``slow`` times as long as it should."""

    def __init__(self, slow: float = 1.0) -> None:
        self.now = 100.0
        self._slow = slow

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += self._slow * seconds


def test_the_lock_of_a_dead_process_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    ours = acquire(store, "j")
    entry = store.get("lock")
    assert entry is not None
    machine = entry.value.decode().partition("/")[0]
    ours.release()
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = f"{machine}/{process.pid}/{start_time(process.pid)}"
        Lock(store, owner).acquire()
        process.kill()
    clock = Clock()
    acquire(store, "j", clock=clock, sleep=clock.sleep)
    assert clock.now == Clock().now
    store.close()


@pytest.mark.parametrize("slow", [1, 10, 1000])
def test_the_lock_of_a_dead_process_elsewhere_is_waited_for(tmp_path: Path, slow: float) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    Lock(store, "elsewhere/1/1").acquire()
    clock = Clock(slow)
    acquire(store, "j", clock=clock, sleep=clock.sleep)
    assert clock.now >= Clock().now + store.lock_ttl_s
    store.close()


def test_the_lock_of_a_master_that_lives_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    other, clock = Lock(store, "elsewhere/1/1"), Clock()
    other.acquire()

    def sleep(seconds: float) -> None:
        other.put({})
        clock.sleep(seconds)

    with pytest.raises(UsageError, match="--job-name j: another master of this job is running"):
        acquire(store, "j", clock=clock, sleep=sleep)
    store.close()

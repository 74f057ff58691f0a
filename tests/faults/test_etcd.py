"""The state of a job is in etcd: master and etcd are killed, and nothing is lost or repeated."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.etcd_server import Etcd
from tests.faults.test_masters import FLAGS, RECORDS
from torch_edl.plugins.etcd.store import EtcdStore

KEYS = "/torch-edl/jobs/count"


@pytest.fixture
def store(etcd: Etcd) -> Iterator[EtcdStore]:
    """What the master of the job writes to."""
    with contextlib.closing(EtcdStore([etcd.endpoint], KEYS)) as store:
        yield store


def require_nothing_left(store: EtcdStore) -> None:
    assert [store.get(key) for key in ("lock", "beat", "state", "preparation")] == [None] * 4


@pytest.mark.slow
def test_master_and_etcd_are_killed(
    start_job: Callable[..., Any], etcd: Etcd, store: EtcdStore
) -> None:
    job = start_job(3 * RECORDS, *FLAGS, "--store", f"etcd://{etcd.endpoint}", delay_s=0.2)
    job.wait_for(lambda: job.done() > 50)
    before = set(job.pids("worker") + job.pids("ps"))
    job.kill_master()
    etcd.kill()
    done = job.done()
    job.wait_for(lambda: job.done() > done + 100)  # with what is leased, and more
    etcd.start()
    kept = store.get("state").revision
    job.wait_for(lambda: store.get("state").revision > kept)
    etcd.kill()
    job.kill_master(etcd.start)  # the next one waits for its state
    job.require_same_processes(before)
    assert not (job.folder / "state.sqlite").exists()
    job.check()
    require_nothing_left(store)


@pytest.mark.slow  # tests/contract/test_stores.py has an etcd with TLS, too
def test_a_master_is_killed_that_reaches_etcd_by_tls(
    start_job: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        locked = Etcd(tmp_path, tls=True)
        stack.callback(locked.kill)
        locked.require_password("secret")
        names = {"CACERT": "ca.pem", "CERT": "client.pem", "KEY": "client.key"}
        for name, file in names.items():
            monkeypatch.setenv(f"ETCDCTL_{name}", str(tmp_path / file))
        monkeypatch.setenv("ETCDCTL_USER", "root:secret")
        job = start_job(RECORDS, *FLAGS, "--store", f"etcds://{locked.endpoint}", delay_s=0.03)
        job.wait_for(lambda: job.done() > 50)
        before = set(job.pids("worker") + job.pids("ps"))
        job.kill_master()
        job.require_same_processes(before)
        job.check()
        assert not (job.folder / "state.sqlite").exists()
        assert "secret" not in (job.folder / "job.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [10, 25])
@pytest.mark.parametrize("master_dies", [False, True])
def test_etcd_is_away(
    start_job: Callable[..., Any], etcd: Etcd, store: EtcdStore, away_s: int, master_dies: bool
) -> None:
    records = 8000
    job = start_job(records, *FLAGS, "--store", f"etcd://{etcd.endpoint}", delay_s=0.05)
    job.wait_for(lambda: job.done() > 100)
    before = set(job.pids("worker") + job.pids("ps"))
    etcd.kill()
    since = time.monotonic()
    done = job.done()
    if master_dies:  # the next one waits for its state
        job.kill("master")
    longest, seen, seen_at, is_back, goal = 0.0, done, since, False, records
    while seen < goal:
        now = time.monotonic()
        assert now < since + 90, job.report()
        if now >= since + away_s and not is_back:
            is_back, meanwhile, goal = True, seen - done, seen + 300
            etcd.start()
        if (found := job.done()) > seen:
            longest, seen, seen_at = max(longest, now - seen_at), found, now
        time.sleep(0.05)
    print(f"away {away_s} s: {meanwhile} records meanwhile, {longest:.1f} s without any")
    if not master_dies:
        assert meanwhile > 0
        events = (job.folder / "events.jsonl").read_text()
        assert f"etcd at http://{etcd.endpoint} does not answer" in events
        assert "the state of the job is kept again" in events
    job.require_same_processes(before)
    job.check()
    require_nothing_left(store)


def test_a_job_whose_etcd_is_not_there(start_job: Callable[..., Any], tmp_path: Path) -> None:
    job = start_job(RECORDS, *FLAGS, "--store", "etcd://127.0.0.1:1")
    assert job.finish() == 2
    told = job.log.read_text()
    assert "etcd at http://127.0.0.1:1 does not answer" in told
    assert "start it, or correct --store" in told

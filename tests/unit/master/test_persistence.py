from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from master.runtime import persistence
from master.runtime.persistence import Persistence
from master.runtime.service import Service
from master.runtime.store import Store
from master.state.fleet import Fleet
from master.state.job import Job
from torch_edl.config import CheckpointConfig, ClusterConfig, JobConfig


class Renewals(Store):
    """Tells when the lock was renewed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.renewed = threading.Semaphore(0)

    def acquire(self, owner: str, ttl_s: float, now: float, *, instead_of: str = "") -> int:
        token = super().acquire(owner, ttl_s, now, instead_of=instead_of)
        self.renewed.release()
        return token


def test_a_status_in_which_only_the_time_changes_is_written_once(tmp_path: Path) -> None:
    config = JobConfig(
        name="j",
        kind="script",
        model_file="/train.py",
        cluster=ClusterConfig(),
        checkpoint=CheckpointConfig(),
    )
    fleet = Fleet("j", workers=1, servers=0, external=True)
    job = Job(config, fleet, folder=tmp_path)
    job.start(time.monotonic())
    service = Service(job, clock=time.monotonic, log_path=lambda role, id: "", cores=1)
    store = Renewals(tmp_path / "state.sqlite")
    owner, token = persistence.acquire(store, "j")
    file = tmp_path / "status.json"
    keeper = Persistence(service, store, owner, token, secret="s", status_file=file)
    for _ in range(3):  # its own, and two of the thread: the first one is written then
        assert store.renewed.acquire(timeout=30)
    first = json.loads(file.read_text())
    file.unlink()
    for _ in range(2):
        assert store.renewed.acquire(timeout=30)
    assert not file.exists()
    keeper.close()
    service.close()
    assert json.loads(file.read_text()) == first

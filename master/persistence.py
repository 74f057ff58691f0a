"""Keeps the state of the job in the store, and the lock of the job, off the path of the RPCs."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from typing import Any

from master.job import Job
from master.service import Clock, Service
from master.store.base import Store
from torch_edl.errors import StoreConflictError, UsageError

log = logging.getLogger(__name__)

LOCK_TTL_S = 3.0
_EVERY_S = 1.0
_KEY = "job"


def acquire(store: Store, name: str) -> tuple[str, int]:
    """Takes the lock of the job, waiting for one whose owner died without giving it back.

    Returns the name under which it is held, and its token.

    Raises:
        UsageError: another master of this job runs.
    """
    owner = f"{socket.gethostname()}/{os.getpid()}"
    give_up = time.monotonic() + LOCK_TTL_S + _EVERY_S
    while True:
        try:
            return owner, store.acquire(owner, LOCK_TTL_S, time.time())
        except StoreConflictError as error:
            if time.monotonic() >= give_up:
                raise UsageError(
                    f"--job-name {name}: another master of this job is running ({error}); "
                    "choose another name, or stop that job"
                ) from error
            time.sleep(0.2)


class Persistence:
    """A thread that renews the lock and writes what changed, once a second."""

    def __init__(self, service: Service, store: Store, owner: str, token: int, clock: Clock):
        self._service = service
        self._store = store
        self._owner = owner
        self._token = token
        self._clock = clock
        found = store.get(_KEY)
        self._revision = 0 if found is None else found[1]
        self._written = b""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="persistence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes the last state and gives the lock back."""
        self._ended.set()
        self._thread.join(LOCK_TTL_S)
        self._store.release(self._token)
        self._store.close()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._keep()
        self._keep()

    def _keep(self) -> None:
        try:
            self._store.acquire(self._owner, LOCK_TTL_S, time.time())
            with self._service.changed:
                state = state_of(self._service.job)
            value = json.dumps(state).encode()
            if value != self._written:
                self._revision = self._store.put(_KEY, value, self._revision, token=self._token)
                self._written = value
        except StoreConflictError as error:
            with self._service.changed:
                self._service.job.fail(f"another master took this job over: {error}", self._clock())
                self._service.changed.notify_all()
        except OSError as error:
            # The job itself does not depend on it; a full disk shows where it hurts.
            log.warning("the state of the job is not kept: %s", error)


def state_of(job: Job) -> dict[str, Any]:
    """What a successor must know to go on."""
    state: dict[str, Any] = {
        "state": job.state,
        "strategy": job.fleet.strategy,
        "incarnation": job.fleet.incarnation,
        "workers_wanted": job.fleet.workers_wanted,
        "processes": [
            {"role": p.role, "id": p.id, "pid": p.pid, "address": p.address}
            for p in job.fleet.alive()
        ],
        "checkpoint": str(job.keeper.newest.path) if job.keeper.newest is not None else "",
    }
    if job.work.main is not None:
        progress = job.work.main.queue.progress()
        state["retired_before"] = progress.retired_before
        state["marks"] = {str(id): mark for id, mark in progress.marks.items()}
    if job.work.evaluations is not None:
        state["evaluations"] = [
            {"steps": r.steps, "metrics": dict(r.metrics)} for r in job.work.evaluations.results
        ]
    return state

"""Keeps the state of the job in the store, its status in a file for those who ask when it is over,
and the lock of the job, off the path of the RPCs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from master.runtime.service import Service
from master.runtime.store import Store
from master.state.actions import Failure, Note
from master.state.restart import to_state
from torch_edl.errors import StoreConflictError, UsageError
from torch_edl.files import write_text
from torch_edl.jobs.status import as_dict

log = logging.getLogger(__name__)

LOCK_TTL_S = 3.0
_EVERY_S = 1.0
# Fields of a status that change while nothing happens.
_TIMES = ("wall_s", "rates")
_KEY = "job"


def acquire(store: Store, name: str) -> tuple[str, int]:
    """Takes the lock of the job, waiting for one whose owner died without giving it back, unless
    that was here and is certain.

    Returns the name under which it is held, and its token.

    Raises:
        UsageError: another master of this job runs.
    """
    owner = f"{socket.gethostname()}/{os.getpid()}"
    give_up = time.monotonic() + LOCK_TTL_S + _EVERY_S
    while True:
        try:
            holder = store.holder()
            dead = holder if _is_dead(holder) else ""
            return owner, store.acquire(owner, LOCK_TTL_S, time.time(), instead_of=dead)
        except StoreConflictError as error:
            if time.monotonic() >= give_up:
                raise UsageError(
                    f"--job-name {name}: another master of this job is running ({error}); "
                    "choose another name, or stop that job"
                ) from error
            time.sleep(0.2)


def _is_dead(owner: str) -> bool:
    """Whether the owner of a lock was a process of this machine that is gone."""
    host, _, pid = owner.rpartition("/")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
        # One that nobody has waited for yet is as dead.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:
        return False


def left_behind(store: Store, secret: str) -> dict[str, Any] | None:
    """What an earlier master of this very run wrote with :meth:`Persistence.keep`; None: nothing.

    Args:
        secret: the token of the job, which another run of the same name does not share.
    """
    found = store.get(_KEY)
    if found is None:
        return None
    state: dict[str, Any] = json.loads(found[0])
    return state if state.pop("run") == _fingerprint(secret) else None


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Persistence:
    """A thread that renews the lock and writes what changed, once a second; and, at once, what
    others rely on.

    Args:
        secret: the token of the job, see :func:`left_behind`.
        status_file: what ``torch-edl status`` reads when there is no master to ask.
    """

    def __init__(
        self,
        service: Service,
        store: Store,
        owner: str,
        token: int,
        *,
        secret: str,
        status_file: Path,
    ) -> None:
        self._service = service
        self._store = store
        self._owner = owner
        self._token = token
        found = store.get(_KEY)
        self._revision = 0 if found is None else found[1]
        self._written = b""
        self._run_of = _fingerprint(secret)
        self._full = False  # and told
        self._status_file = status_file
        self._status_written: dict[str, Any] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="persistence", daemon=True)
        self._thread.start()

    def keep(self) -> None:
        """Writes what a restarted master continues with, if it changed; the caller holds the lock.

        Raises:
            StoreConflictError: another master took the job over.
            OSError: the disk refused.
        """
        job = self._service.job
        if not job.workforce.survives_master:
            return
        value = json.dumps({"run": self._run_of, **to_state(job)}).encode()
        if value != self._written:
            try:
                self._revision = self._store.put(_KEY, value, self._revision, token=self._token)
            except OSError as error:
                self._told(error)
                raise
            self._written = value

    def close(self) -> None:
        """Writes the last state and gives the lock back."""
        self._ended.set()
        self._thread.join(LOCK_TTL_S)
        try:
            self._store.release(self._token)
        except OSError as error:  # whose owner is gone can be taken
            log.warning("the lock of the job is not given back: %s", error)
        self._store.close()

    def _told(self, error: OSError | None) -> None:
        """Says once that there is no room, and once that there is some again; the caller holds
        the lock."""
        if (error is not None) == self._full:
            return
        self._full = error is not None
        if error is None:
            self._service.apply(Note("info", "the state of the job is kept again"))
            return
        waits = self._service.job.workforce.survives_master
        then = "no worker joins or leaves until there is room" if waits else "the job continues"
        text = f"the state of the job cannot be kept: {error}; {then}"
        self._service.apply(Note("warning", text))

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._keep()
        self._status_written = None  # the last one has the times of the end
        self._keep()

    def _keep(self) -> None:
        try:
            self._store.acquire(self._owner, LOCK_TTL_S, time.time())
            with self._service.changed:
                status = self._service.status()
            self._keep_status(as_dict(status))
            with self._service.changed:
                self.keep()
                self._told(None)
        except StoreConflictError as error:
            self._service.apply(Failure(f"another master took this job over: {error}"))
        except OSError as error:
            with self._service.changed:
                self._told(error)

    def _keep_status(self, status: dict[str, Any]) -> None:
        """Writes the status if more than the time has changed."""
        lasting = {key: value for key, value in status.items() if key not in _TIMES}
        if lasting != self._status_written:
            write_text(self._status_file, json.dumps(status, indent=1))
            self._status_written = lasting

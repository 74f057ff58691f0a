"""A thread that writes the state of the job to the store, its status to a file, and renews the
lock."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.runtime import throttle as pace
from master.runtime.service import Service
from master.runtime.store.lock import Lock
from master.state.actions import Note
from master.state.job.restart import stored, to_state
from torch_edl.checkpoint.durable import write_text
from torch_edl.errors import StoreConflictError, UsageError
from torch_edl.interfaces import Store
from torch_edl.launch.jobs.status import as_dict
from torch_edl.processes.process_group import start_time

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_POLL_S = 0.2
_CLOSE_S = 5.0
# Fields of a status that change with time only.
_TIMES = ("wall_s", "rates")
# Keys in the store: the state, which changes every second, and the preparation, which may be large
# and rarely changes.
_STATE, _PREPARATION = "state", "preparation"


def acquire(
    store: Store,
    name: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lock:
    """Acquire the lock of the job. Waits for the lock of a dead owner to expire, unless the owner
    was a process of this machine that is known to have exited.

    Raises:
        UsageError: another master of this job is running.
    """
    owner = f"{_machine()}/{os.getpid()}/{start_time(os.getpid())}"
    lock = Lock(store, owner, clock=clock)
    give_up = math.inf
    while True:
        asked = clock()
        try:
            lock.acquire(is_dead=_is_dead)
            return lock
        except StoreConflictError as error:
            if asked >= give_up:
                raise UsageError(
                    f"--job-name {name}: another master of this job is running ({error}); "
                    "choose another name, or stop that job"
                ) from error
            # One period after the first look, plus a renewal that an owner may have made just
            # before its death.
            give_up = min(give_up, clock() + store.lock_ttl_s + _EVERY_S)
            sleep(_POLL_S)


def _machine() -> str:
    """Return an id of the scope in which a pid is unique: machine, boot and container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()}:{boot}:{os.stat('/proc/self/ns/pid').st_ino}"


def _is_dead(owner: str) -> bool:
    """Return whether the owner of a lock was a process of this machine that has exited."""
    machine, _, process = owner.partition("/")
    pid, _, started = process.partition("/")
    here = machine == _machine() and pid.isdecimal()
    return here and start_time(int(pid)) != int(started)


def left_behind(store: Store, secret: str) -> dict[str, Any] | None:
    """Return the state that an earlier master of this run stored; None if there is none.

    Args:
        secret: token of the job, which differs between runs of the same name.
    """
    found = [store.get(key) for key in (_STATE, _PREPARATION)]
    parts = [json.loads(entry.value) for entry in found if entry is not None]
    if len(parts) < 2 or any(part.pop("run") != _fingerprint(secret) for part in parts):
        return None
    return {**parts[0], _PREPARATION: parts[1]}


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class Noted:
    """The state of the job at one moment, to be written by :meth:`Persistence.write`."""

    number: int
    """Number of the note, which increases with each note."""
    state: dict[str, Any]
    preparation: dict[str, Any]
    """State of the preparation; the same object as long as it has not changed."""


class Persistence:
    """A thread that renews the lock and writes changes once a second. :meth:`write` also writes at
    once, before answers that other processes rely on.

    Args:
        lock: lock of the store, acquired.
        secret: token of the job, see :func:`left_behind`.
        status_file: status that ``torch-edl status`` reads when no master runs.
        superseded: called once if another master has taken over the job. After it, nothing may be
            done: processes and files belong to the other master.
    """

    def __init__(
        self,
        service: Service,
        lock: Lock,
        *,
        secret: str,
        status_file: Path,
        superseded: Callable[[str], None],
    ) -> None:
        self._service = service
        self._lock = lock
        self._superseded = superseded
        self._run_of = _fingerprint(secret)
        self._numbers = 0  # of the last note; guarded by the lock of the job
        self._writing = threading.Lock()  # guards the fields below
        self._written = 0
        self._text = ""
        self._preparation: dict[str, Any] | None = None  # last written
        self._full = False  # the store fails, and this was reported; guarded by the job's lock
        self._status_file = status_file
        self._status_written: dict[str, Any] | None = None
        self._ended = threading.Event()
        service.leases_until = lock.valid_until
        self._thread = threading.Thread(target=self._run, name="persistence", daemon=True)
        self._thread.start()

    def note(self) -> Noted:
        """Return a copy of the job's state. The caller must hold the lock of the job."""
        self._numbers += 1
        state = to_state(self._service.job)
        return Noted(self._numbers, state, state.pop(_PREPARATION))

    def write(self, noted: Noted) -> None:
        """Write a noted state, unless a later one was written. The caller must not hold the lock of
        the job, which would block on the store.

        Raises:
            OSError: the store cannot be written.
            StoreConflictError: another master has taken over the job.
        """
        with self._writing:
            if noted.number <= self._written:
                return
            puts = {}
            text = json.dumps({"run": self._run_of, **stored(noted.state)})
            if text != self._text:
                puts[_STATE] = text.encode()
            if noted.preparation is not self._preparation:
                whole = {"run": self._run_of, **noted.preparation}
                puts[_PREPARATION] = json.dumps(whole).encode()
            # After a pause or a disconnection, the lock is checked even if nothing has changed.
            if puts or not self._lock.is_certain:
                try:
                    self._lock.put(puts)
                except StoreConflictError as error:
                    self._superseded(str(error))
                    raise
                except OSError as error:
                    self._told(error)
                    raise
            self._written, self._text = noted.number, text
            self._preparation = noted.preparation

    def close(self, *, over: bool = False) -> None:
        """Write the last state and release the lock.

        Args:
            over: all processes of the job have ended; the stored state is removed.
        """
        self._ended.set()
        self._thread.join(_CLOSE_S)
        try:
            if over:
                self._lock.clear()
            else:
                self._lock.release()
        except (OSError, StoreConflictError) as error:  # the lock of a dead owner expires
            log.warning("the lock of the job is not given back: %s", error)
        self._lock.store.close()

    def _told(self, error: OSError | None) -> None:
        """Report once that the store cannot be written, and once that it can again."""
        with self._service.changed:
            if (error is not None) == self._full:
                return
            self._full = error is not None
            text = "the state of the job is kept again"
            if error is not None:
                then = "training continues; no process joins or starts until it can"
                text = f"the state of the job cannot be kept: {error}; {then}"
            self._service.apply(Note("info" if error is None else "warning", text))

    def _run(self) -> None:
        notes = pace.of_notes()
        while not self._ended.wait(_EVERY_S):
            began = time.monotonic()
            whole = notes.is_due(began)
            self._keep(whole=whole)
            if whole:
                notes.took(time.monotonic() - began, began)
        self._status_written = None  # the last status has the final times
        self._keep()

    def _keep(self, *, whole: bool = True) -> None:
        """Renew the lock if that is due, and write the state.

        Args:
            whole: False leaves the state as it is.
        """
        try:
            if self._lock.is_due:  # each write renews it, too
                self._lock.renew()
            self._service.leases_until = self._lock.valid_until
            if not whole:
                return
            with self._service.changed:
                status, noted = self._service.status(), self.note()
            self.write(noted)
            self._keep_status(as_dict(status))
            self._told(None)
        except StoreConflictError as error:
            self._superseded(str(error))
        except OSError as error:
            self._told(error)

    def _keep_status(self, status: dict[str, Any]) -> None:
        """Write the status file if more than the times has changed."""
        lasting = {key: value for key, value in status.items() if key not in _TIMES}
        if lasting != self._status_written:
            write_text(self._status_file, json.dumps(status, indent=1))
            self._status_written = lasting

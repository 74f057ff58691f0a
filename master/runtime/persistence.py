"""The state of a job in the store."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from master.runtime.ledger_file import LedgerFile
from master.runtime.store import Lock
from master.state.job.job import ManagedJob
from master.state.job.restart import FORMAT, stored, to_state
from torch_edl.errors import EdlError, StoreConflictError
from torch_edl.interfaces import Store

# Keys in the store: the state, which changes every second, and the preparation, which may be large
# and rarely changes.
_STATE, _PREPARATION = "state", "preparation"


def left_behind(store: Store, secret: str) -> dict[str, Any] | None:
    """Return the state that an earlier master of this run stored; None if there is none. The secret
    is the token of the job, which differs between runs of the same name.

    Raises:
        EdlError: the master of another version of torch-edl stored the state.
    """
    found = [store.get(key) for key in (_STATE, _PREPARATION)]
    parts = [json.loads(entry.value) for entry in found if entry is not None]
    if len(parts) < 2 or any(part.pop("run") != _fingerprint(secret) for part in parts):
        return None
    if (found_format := parts[0].pop("format", 1)) != FORMAT:
        raise EdlError(  # not the end of the job: the right version may go on
            f"state of the job: format {found_format}; this version of torch-edl reads format "
            f"{FORMAT}: go on with the version that started the job, or start the job again"
        )
    return {**parts[0], _PREPARATION: parts[1]}


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class Noted:
    """The state of the job at one moment, to be written by :meth:`StateWriter.write`."""

    number: int
    """Number of the note, which increases with each note."""
    incarnation: int
    """Incarnation of the model."""
    state: dict[str, Any]
    preparation: dict[str, Any]
    """State of the preparation; the same object as long as it has not changed."""


class StateWriter:
    """Writes the state of a job under its lock.

    Args:
        lock: lock of the store, acquired.
        secret: token of the job, see :func:`left_behind`.
        ledger: receives the lines of the task ledger that are stored; None: nothing does.
        superseded: called if another master has taken over the job. After it, nothing may be done:
            processes and files belong to the other master.
    """

    def __init__(
        self,
        lock: Lock,
        *,
        secret: str,
        superseded: Callable[[str], None],
        ledger: LedgerFile | None = None,
    ) -> None:
        self._ledger = ledger
        self._lock = lock
        self._superseded = superseded
        self._run_of = _fingerprint(secret)
        self._numbers = 0  # of the last note; guarded by the lock of the job
        self._writing = threading.Lock()  # guards the fields below
        self._written = 0
        self._text = ""
        self._preparation: dict[str, Any] | None = None  # last written

    @property
    def may_lease(self) -> bool:
        """True if no other master can grant leases now. The clock of the lock also runs while this
        process is paused."""
        return self._lock.is_certain

    def note(self, job: ManagedJob) -> Noted:
        """Return a copy of the job's state. The caller must hold the lock of the job."""
        self._numbers += 1
        if self._ledger is not None:
            outcome, main = job.lifecycle.outcome, job.tasks.main
            end = (outcome.state if outcome else "", main.space.total if main else 0)
            job.tasks.ledger.close_line(time.time(), *end, self._ledger.written)
        state = to_state(job)
        return Noted(self._numbers, job.fleet.model.incarnation, state, state.pop(_PREPARATION))

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
            text = json.dumps({"run": self._run_of, "format": FORMAT, **stored(noted.state)})
            if text != self._text:
                puts[_STATE] = text.encode()
            if noted.preparation is not self._preparation:
                whole = {"run": self._run_of, **noted.preparation}
                puts[_PREPARATION] = json.dumps(whole).encode()
            # After a pause or a disconnection, the lock is checked even if nothing has changed.
            if puts or not self._lock.is_certain:
                self._put(puts)
            self._written, self._text = noted.number, text
            self._preparation = noted.preparation
            if self._ledger is not None:
                self._ledger.write(noted.state["ledger"])

    def renew(self) -> None:
        """Renew the lock if that is due; errors are those of :meth:`write`."""
        if self._lock.is_due:
            self._put({})

    def _put(self, puts: Mapping[str, bytes]) -> None:
        try:
            self._lock.put(puts)
        except StoreConflictError as error:
            self._superseded(str(error))
            raise

    def close(self, *, over: bool = False) -> None:
        """Release the lock. If all processes of the job have ended (``over``), remove the stored
        state."""
        self._lock.close(over=over)

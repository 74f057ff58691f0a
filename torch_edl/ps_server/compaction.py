"""Snapshots of a shard in its log, taken in the background when the log has grown."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from torch_edl.errors import StaleIncarnationError
from torch_edl.ps_server import snapshots
from torch_edl.ps_server.durability.log import Log
from torch_edl.ps_server.shard import ModelShard

_log = logging.getLogger(__name__)

LOG_BYTES = 512 << 20
"""Size below which a log is not replaced by a snapshot; half the size of the last snapshot is a
limit, too. A byte of log is replayed as fast as a byte of a snapshot is read, and a snapshot writes
the whole shard (to a peer, over the network). At 20 MB of pushes per second, a shard is written
every 26 s."""
_LOOK_S = 0.2
_RETRY_S = 10.0  # after a failed write
_PATIENCE = 3  # snapshots in a row that checkpoints may interrupt


class _GivenUpError(Exception):
    """A checkpoint is due, or the server stops: the snapshot is abandoned."""


class Compactor:
    """A thread that takes snapshots while pushes continue.

    Args:
        is_held: returns whether a checkpoint holds pushes back; a checkpoint has priority.
    """

    def __init__(self, shard: ModelShard, log: Log, is_held: Callable[[], bool]) -> None:
        self._shard, self._snapshots_of = shard, log
        self._is_held = is_held
        self.lock = threading.Lock()
        """Held while a snapshot or a checkpoint reads the tables: only one can at a time."""
        self._wanted = threading.Event()  # a checkpoint waits
        self._given_up = 0
        self._size = 0  # bytes of the last snapshot
        self._has_base = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; a snapshot in progress is abandoned."""
        self._closing.set()
        self._thread.join()

    def give_way(self, timeout_s: float) -> None:
        """Wait until no snapshot is in progress, before a checkpoint. A snapshot is abandoned,
        unless that has happened too often. The first one of a restored shard is awaited: the
        checkpoint that the shard was restored from may be removed once there is a newer one.

        Raises:
            TimeoutError: the first snapshot takes longer.
        """
        if self._needs_first():
            self._has_base.clear()
            if not self._has_base.wait(timeout_s):
                raise TimeoutError("the first snapshot of a restored server is under way")
        if self._given_up < _PATIENCE:
            self._wanted.set()
        with self.lock:
            self._wanted.clear()

    def _needs_first(self) -> bool:
        return self._shard.needs_source and self._snapshots_of.base.path is None

    def _is_due(self) -> bool:
        if not self._shard.is_described or self._is_held():
            return False
        if self._needs_first() or self._snapshots_of.needs_base:
            return True
        return self._snapshots_of.bytes > max(LOG_BYTES, self._size // 2)

    def _check(self) -> None:
        if self._closing.is_set() or (self._wanted.is_set() and not self._needs_first()):
            raise _GivenUpError

    def _run(self) -> None:
        not_before = 0.0
        while not self._closing.wait(_LOOK_S):
            # A peer that needs a base is a new one: the failure of the old one does not count.
            waits = time.monotonic() < not_before and not self._snapshots_of.needs_base
            if waits or not self._is_due():
                continue
            try:
                with self.lock:
                    self._size = snapshots.write(self._shard, self._snapshots_of, self._check)
                self._given_up = 0
                self._has_base.set()
            except _GivenUpError:
                self._given_up += 1
            except StaleIncarnationError:
                return
            except OSError as error:
                _log.warning("no snapshot of the log: %s; trying again later", error)
                not_before = time.monotonic() + _RETRY_S

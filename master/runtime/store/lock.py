"""The lock on a job: one master at a time writes to the store.

The token of a lock is the revision of its key. Each write names it, so that an owner that was
paused for longer than its lock lived cannot overwrite what its successor wrote. Each write also
names the write before it: one that was not answered in time cannot come late, over a newer one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from torch_edl.errors import StoreConflictError
from torch_edl.interfaces import Store

_LOCK, _BEAT = "lock", "beat"


class Lock:
    """The lock of a store, as one of those that ask for it sees it. Not thread-safe, but for
    :meth:`put`.

    Whether the time of an owner is over is decided without its clock or that of the store: whoever
    waits sees that no renewal comes for as long as the lock lives.

    Args:
        owner: unique among all that may ask; not empty.
        clock: seconds that never go back.
    """

    def __init__(
        self, store: Store, owner: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.token = 0
        self.valid_until = 0.0
        """On the clock: nobody else can have the lock before."""
        self._owner = owner
        self._mutex = threading.Lock()  # for all writes of the owner
        self._beat = 0  # revision of the last write
        self._unanswered = False  # that revision may be another one
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._seen_at = 0.0

    def acquire(self, *, is_dead: Callable[[str], bool] = lambda owner: False) -> None:
        """Takes the lock.

        Args:
            is_dead: whether an owner is known to be gone, so that its time need not be waited for.

        Raises:
            StoreConflictError: another owner has the lock; ask again.
        """
        began = self._clock()
        lock, beat = self.store.get(_LOCK), self.store.get(_BEAT)
        holder = lock.value.decode() if lock is not None else ""
        seen = (lock.revision if lock else 0, beat.revision if beat else 0)
        if holder not in ("", self._owner) and not is_dead(holder):
            if seen != self._seen:
                self._seen, self._seen_at = seen, began
            if began - self._seen_at < self.store.lock_ttl_s:
                raise StoreConflictError(f"the lock is held by {holder}")
        self.token = self.store.commit(
            {_LOCK: self._owner.encode()}, {_LOCK: seen[0], _BEAT: seen[1]}
        )
        self._beat, self._unanswered = seen[1], False
        self.valid_until = began + self.store.lock_ttl_s

    @property
    def is_certain(self) -> bool:
        """Nobody else can have the lock now; otherwise only the store knows."""
        return self._clock() < self.valid_until

    def renew(self) -> None:
        """The owner lives.

        Raises:
            StoreConflictError: another one has taken the lock.
        """
        self.put({})

    def put(self, puts: Mapping[str, bytes]) -> None:
        """Writes keys, and renews the lock.

        Raises:
            StoreConflictError: another one has taken the lock; nothing was written.
        """
        with self._mutex:
            began = self._clock()
            self._beat = self._write({_BEAT: b"", **puts})
            self.valid_until = began + self.store.lock_ttl_s

    def _write(self, puts: Mapping[str, bytes]) -> int:
        while True:
            if self._unanswered:
                beat = self.store.get(_BEAT)
                self._beat = beat.revision if beat is not None else 0
            self._unanswered = True
            try:
                written = self.store.commit(puts, {_LOCK: self.token, _BEAT: self._beat})
            except StoreConflictError:
                lock = self.store.get(_LOCK)
                if lock is None or lock.revision != self.token:
                    raise
                continue  # a write that was not answered has come meanwhile
            self._unanswered = False
            return written

    def release(self) -> None:
        """Gives the lock back.

        Raises:
            StoreConflictError: another one has taken the lock.
        """
        self.store.commit({_LOCK: b""}, {_LOCK: self.token})

    def clear(self) -> None:
        """Removes everything, the lock as well.

        Raises:
            StoreConflictError: another one has taken the lock; nothing was removed.
        """
        self.store.clear({_LOCK: self.token})

"""A store that lives as long as its process: for tests, and for jobs that keep nothing."""

from __future__ import annotations

import threading

from torch_edl.errors import StoreConflictError


class MemoryStore:
    """Implements :class:`master.runtime.store.base.Store` with a dict."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[str, tuple[bytes, int]] = {}
        self._revision = 0
        self._owner = ""
        self._token = 0
        self._until = 0.0

    def acquire(self, owner: str, ttl_s: float, now: float, *, instead_of: str = "") -> int:
        """See :class:`Store`."""
        with self._mutex:
            if self._owner != owner:
                if self._owner not in ("", instead_of) and now < self._until:
                    raise StoreConflictError(f"the lock is held by {self._owner}")
                self._owner = owner
                self._token += 1
            self._until = now + ttl_s
            return self._token

    def holder(self) -> str:
        """See :class:`Store`."""
        with self._mutex:
            return self._owner

    def release(self, token: int) -> None:
        """See :class:`Store`."""
        with self._mutex:
            if token == self._token:
                self._owner = ""

    def get(self, key: str) -> tuple[bytes, int] | None:
        """See :class:`Store`."""
        with self._mutex:
            return self._entries.get(key)

    def put(self, key: str, value: bytes, expected_revision: int, *, token: int) -> int:
        """See :class:`Store`."""
        with self._mutex:
            self._check(key, expected_revision, token)
            self._revision += 1
            self._entries[key] = (bytes(value), self._revision)
            return self._revision

    def close(self) -> None:
        """Nothing to give up."""

    def _check(self, key: str, expected_revision: int, token: int) -> None:
        if token != self._token or not self._owner:
            raise StoreConflictError(f"{key}: token {token} is stale, the newest is {self._token}")
        revision = self._entries.get(key, (b"", 0))[1]
        if revision != expected_revision:
            raise StoreConflictError(
                f"{key}: has revision {revision}, expected was {expected_revision}"
            )

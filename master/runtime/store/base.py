"""The interface of stores."""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Keys with revisions, and one lock. Thread-safe.

    Who writes must hold the lock and shows the token that it got with it. Tokens grow, and a
    write with one that is not the newest is refused: an owner that was stopped for longer than
    its lock lived cannot overwrite what its successor wrote.
    """

    def acquire(self, owner: str, ttl_s: float, now: float, *, instead_of: str = "") -> int:
        """Takes or renews the lock, and returns its token.

        The lock is ``owner``'s until ``now + ttl_s``. A renewal keeps the token.

        Args:
            owner: unique among all that may ask.
            now: Unix time in seconds; the clocks of all that ask must agree within the ttl.
            instead_of: an owner who is known to be dead; its time is over.

        Raises:
            StoreConflictError: somebody else has it, and their time is not over.
        """
        ...

    def holder(self) -> str:
        """Who took the lock last and did not give it back; empty: nobody."""
        ...

    def release(self, token: int) -> None:
        """Gives the lock back, if the token is still the newest."""
        ...

    def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and revision of a key; None if there is none."""
        ...

    def put(self, key: str, value: bytes, expected_revision: int, *, token: int) -> int:
        """Writes a key and returns its new revision, which is larger than all before it.

        Args:
            expected_revision: what :meth:`get` told; 0 for a key that must not exist.

        Raises:
            StoreConflictError: the key has another revision, or the token is stale.
        """
        ...

    def close(self) -> None:
        """Gives up connections; the store itself stays."""
        ...

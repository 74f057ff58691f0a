"""The note that the master stores about the copy of a shard, as the shard's server knows it."""

from __future__ import annotations


class CopyNote:
    """The newest note and whether the master has stored it. Not thread-safe.

    A server asks the master to store that a peer has a copy of its shard, or that it continues
    without one. When it dies, the master tells a successor to take over the copy, or knows that the
    state is lost. An incomplete copy is thus never taken for the state.

    Notes are numbered, since one may reach the master after a newer one.
    """

    def __init__(self) -> None:
        self.number = 0
        """Number of the newest note; 0 before the first."""
        self.has_copy = False
        """Content of the newest note: whether a peer has a copy."""
        self._noted = 0

    def inherit(self) -> None:
        """Adopt the predecessor's note that there is a copy."""
        self.number, self.has_copy, self._noted = 1, True, 1

    def ask(self, has_copy: bool) -> None:
        """Make a new note, unless the newest one has the same content."""
        if self.number == 0 or has_copy != self.has_copy:
            self.number += 1
            self.has_copy = has_copy

    def answered(self, number: int) -> None:
        """Record that the master has stored the note of that number; 0 for none."""
        self._noted = max(self._noted, number)

    @property
    def is_pending(self) -> bool:
        """True if the master may not have stored the newest note."""
        return self._noted < self.number

    @property
    def is_made(self) -> bool:
        """True if the master has stored a note: it knows that there is state to lose."""
        return self._noted > 0

    @property
    def is_alone(self) -> bool:
        """True if the master has stored the newest note, and the note says that there is no
        copy."""
        return self.is_made and not self.has_copy and not self.is_pending

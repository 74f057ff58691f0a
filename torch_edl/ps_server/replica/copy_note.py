"""What the master has noted about the copy of a shard, as far as the server of the shard knows."""

from __future__ import annotations


class CopyNote:
    """Not thread-safe.

    A server asks the master to note that a peer has a copy of its shard, or that no server has one
    and it goes on alone. When it dies, the master tells a successor to take the copy over, or knows
    that the state is lost. A copy that lacks what was acknowledged is thus never taken for the
    state.

    Notes have numbers, since one may reach the master late, after a newer one.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the newest note; 0: there is none."""
        self.has_copy = False
        """What it says."""
        self._noted = 0

    def inherit(self) -> None:
        """What the predecessor had noted, that there is a copy, counts on."""
        self.number, self.has_copy, self._noted = 1, True, 1

    def ask(self, has_copy: bool) -> None:
        """The master is to note this, if the newest note does not say it."""
        if self.number == 0 or has_copy != self.has_copy:
            self.number += 1
            self.has_copy = has_copy

    def answered(self, number: int) -> None:
        """The master has the note of that number, for good; 0: none."""
        self._noted = max(self._noted, number)

    @property
    def is_pending(self) -> bool:
        """The master may not have the newest note."""
        return self._noted < self.number

    @property
    def is_made(self) -> bool:
        """The master has any note: it knows that there is something to lose."""
        return self._noted > 0

    @property
    def is_alone(self) -> bool:
        """The master has the newest note, which says that there is no copy."""
        return self.is_made and not self.has_copy and not self.is_pending

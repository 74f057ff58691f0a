"""A checkpoint that is being taken, and the numbers of such attempts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from master.state.actions import CommitLocal

# Upper bound on the moves that one master attempts.
_MOVES_OF_A_MASTER = 1 << 32


@dataclass
class CheckpointAttempt:
    """A checkpoint that is being taken."""

    kind: str = ""
    """``periodic``, ``best``, ``final`` or ``cut``."""
    by_worker: bool = False
    """True if a worker writes the checkpoint."""
    servers: tuple[int, ...] = ()
    """Incarnations of the servers that write the checkpoint, in the order of shards."""
    commit: CommitLocal | None = None
    """The commit of what a worker wrote; None before the worker has written."""


class AttemptNumbers:
    """Numbers that no other master of the job uses.

    Args:
        master: number of this master.
    """

    def __init__(self, master: int = 0) -> None:
        self._master = master
        self._snapshots = self._moves = 0

    def next_snapshot(self) -> str:
        """Return the number of the next snapshot, as in its folder."""
        self._snapshots += 1
        return f"{self._master}-{self._snapshots}"

    def next_move(self) -> int:
        """Return the number of the next move. Not a clock: that of an earlier master's machine may
        be ahead."""
        self._moves += 1
        return self._master * _MOVES_OF_A_MASTER + self._moves

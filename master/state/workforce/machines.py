"""Which machines lose processes: others are preferred for a while. Pure."""

from __future__ import annotations

from collections import deque

from master.state.actions import Note

# So many losses within this time speak against a machine, and are forgotten after it.
_LOSSES = 3
_WITHIN_S = 600.0
# A job of thousands of workers remembers the machines that lost processes last.
_REMEMBERED = 1000


class Machines:
    """Counts the processes that machines lost. A process that was preempted, or asked to leave,
    does not count."""

    def __init__(self) -> None:
        self._losses: dict[str, deque[float]] = {}

    def lost(self, machine: str, text: str, now: float) -> list[Note]:
        """A machine has lost a process.

        Args:
            machine: its name; empty: it is not known.
            text: how.
        """
        if not machine:
            return []
        losses = self._losses.pop(machine, None) or deque(maxlen=_LOSSES)
        before = self._is_avoided(losses, now)
        losses.append(now)
        self._losses[machine] = losses
        while len(self._losses) > _REMEMBERED:
            del self._losses[next(iter(self._losses))]
        if before or not self._is_avoided(losses, now):
            return []
        return [
            Note(
                "warning",
                f"{machine} lost {_LOSSES} processes within {_WITHIN_S / 60:g} minutes, the last "
                f"one: {text}; other machines are preferred for as long",
            )
        ]

    def avoided(self, now: float) -> tuple[str, ...]:
        """Machines on which a process is to run only if no other one has room; the last one that
        lost a process comes first."""
        found = [name for name, losses in self._losses.items() if self._is_avoided(losses, now)]
        return tuple(reversed(found))

    @staticmethod
    def _is_avoided(losses: deque[float], now: float) -> bool:
        return len(losses) == _LOSSES and now - losses[0] < _WITHIN_S

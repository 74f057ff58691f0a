"""Machines that lose processes: others are preferred for a while. Pure."""

from __future__ import annotations

from collections import deque

from master.state.actions import Note

# Losses within the given seconds after which a machine is avoided; older losses are forgotten.
_LOSSES = 3
_WITHIN_S = 600.0
# Number of machines that are remembered: those with the newest losses.
_REMEMBERED = 1000


class Machines:
    """Losses of processes by machine. Preempted processes, and those asked to leave, do not
    count."""

    def __init__(self) -> None:
        self._losses: dict[str, deque[float]] = {}

    def lost(self, machine: str, text: str, now: float) -> list[Note]:
        """Record that a machine lost a process. Returns a warning if the machine is avoided from
        now on.

        Args:
            machine: its name; empty if unknown.
            text: how the process ended.
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
        """Return the machines to use only if no other has room, the newest loss first."""
        found = [name for name, losses in self._losses.items() if self._is_avoided(losses, now)]
        return tuple(reversed(found))

    @staticmethod
    def _is_avoided(losses: deque[float], now: float) -> bool:
        return len(losses) == _LOSSES and now - losses[0] < _WITHIN_S

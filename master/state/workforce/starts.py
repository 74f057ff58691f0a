"""New processes: their numbers, their first state, and the command that starts each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from master.state.actions import Start
from master.state.workforce.machines import Machines
from master.state.workforce.processes import PENDING, STARTING, Process
from torch_edl.processes.launcher import ProcessSpec

P = TypeVar("P", bound=Process)


class Starts:
    """Makes the processes of a fleet, each with a number that was never used for its role.

    Args:
        is_scheduled: processes are scheduled by a cluster and may stay pending.
    """

    def __init__(self, *, is_scheduled: bool) -> None:
        self.env: dict[str, str] = {}
        """Environment variables of all processes."""
        self.machines = Machines()
        self._first_state = PENDING if is_scheduled else STARTING
        self._next_id: dict[str, int] = {}

    def next_id(self, role: str) -> int:
        """Return the number of the next process of a role."""
        return self._next_id.get(role, 0)

    def make(
        self,
        kind: type[P],
        module: str,
        args: Sequence[str],
        now: float,
        *,
        slot: int = -1,
        pod: int = -1,
    ) -> tuple[P, Start]:
        """Return a new process, and the action that starts it."""
        id = self.next_id(kind.role)
        self._next_id[kind.role] = id + 1
        spec = ProcessSpec(
            role=kind.role,
            id=id,
            module=module,
            args=args,
            env=dict(self.env),
            end_with_parent=0,  # the next master adopts it
            slot=slot,
            pod=pod,
            avoid=self.machines.avoided(now),
        )
        process = kind(id, state=self._first_state, started_at=now, slot=slot, pod=pod)
        return process, Start(spec)

    def to_state(self) -> dict[str, int]:
        """Return the state for a restarted master, as JSON values."""
        return dict(self._next_id)

    def from_state(self, state: Mapping[str, int]) -> None:
        """Restore what :meth:`to_state` returned."""
        self._next_id = dict(state)

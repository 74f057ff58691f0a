"""The machine on which each process of a job runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_edl.processes.launcher import ProcessSpec

WORKER, SERVER = "worker", "ps"


@dataclass(frozen=True, kw_only=True)
class Room:
    """A node that accepts processes."""

    name: str
    host: str
    """Name of the machine; two nodes may be on one machine."""
    slots: int
    """Maximum number of workers."""
    processes: Sequence[tuple[str, int]] = field(default_factory=tuple)
    """Role and id of each process of the node."""


def place(wanted: Sequence[ProcessSpec], rooms: Sequence[Room]) -> dict[tuple[str, int], str]:
    """Return the node of each process that has room, by role and id of the process.

    A worker takes a slot; workers are spread evenly over the free slots. Servers take no slot. They
    are spread over the machines, and a server does not share a machine with the servers that
    :attr:`~torch_edl.processes.launcher.ProcessSpec.apart` names, unless every machine has one of
    these. Machines that a process should avoid are used if no other machine has room.
    """
    found: dict[tuple[str, int], str] = {}
    inside = {room.name: list(room.processes) for room in rooms}
    apart = {(spec.role, spec.id): spec.apart for spec in wanted}

    def count(role: str, room: Room) -> int:
        return Counter(of for of, _ in inside[room.name])[role]

    def is_near(room: Room, spec: ProcessSpec) -> bool:
        """Return whether the node has a process that should be apart from this one."""
        return any(
            role == spec.role and (id in spec.apart or spec.id in apart.get((role, id), ()))
            for role, id in inside[room.name]
        )

    def rank(room: Room, spec: ProcessSpec) -> tuple[int, ...]:
        avoided = room.host in spec.avoid
        if spec.role == WORKER:
            return avoided, count(WORKER, room) - room.slots, count(SERVER, room)
        machine = [other for other in rooms if other.host == room.host]
        return (
            avoided,
            any(is_near(other, spec) for other in machine),
            is_near(room, spec),
            sum(count(SERVER, other) for other in machine),
            count(SERVER, room),
            count(WORKER, room),
        )

    for spec in wanted:
        key = (spec.role, spec.id)
        free = [r for r in rooms if spec.role != WORKER or count(WORKER, r) < r.slots]
        if free:
            room = min(free, key=lambda room: rank(room, spec))
            found[key] = room.name
            inside[room.name].append(key)
    return found

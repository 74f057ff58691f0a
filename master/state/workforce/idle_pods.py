"""Pods whose process has ended by itself, while the pod lives on. Pure.

The successor of the process starts in the same pod: nothing has to be scheduled, and the node of
the pod has imported the framework. The master stores nothing about idle pods. The next master ends
them.
"""

from __future__ import annotations

from collections.abc import Container

from master.state.workforce.processes import Process, ServerProcess


class IdlePods:
    """The last processes of idle pods, by the role and the slot (or shard) of their successors."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Process] = {}
        self._unused: list[Process] = []

    def add(self, process: Process, *, reuse: bool) -> None:
        """Add the pod of a process that has ended. The pod is to end unless ``reuse``."""
        before = self._last.pop(_key(process), None)
        self._unused += [before] if before is not None else []
        if reuse:
            self._last[_key(process)] = process
        else:
            self._unused.append(process)

    def has(self, role: str, place: int) -> bool:
        """Return whether there is an idle pod; see :meth:`take`."""
        return (role, place) in self._last

    def take(self, role: str, place: int) -> Process | None:
        """Return the last process of the idle pod in which a new process starts; None if there is
        no such pod.

        Args:
            place: shard of a new server, slot of any other process.
        """
        return self._last.pop((role, place), None)

    def unused(self, awaited: Container[str]) -> list[Process]:
        """Remove the pods that are to end, and return the last process of each.

        Args:
            awaited: roles of which processes start later, and may use an idle pod then.
        """
        late = [key for key in self._last if key[0] not in awaited]
        found = [*self._unused, *(self._last.pop(key) for key in late)]
        self._unused = []
        return found


def _key(process: Process) -> tuple[str, int]:
    place = process.shard if isinstance(process, ServerProcess) else process.slot
    return process.role, place

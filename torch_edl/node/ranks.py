"""The machines of a script, and the ranks of the processes there. Pure.

The slot of a worker is its rank. Each machine has a group number (``GROUP_RANK`` of torchrun) and
the slots of that number: with four workers on each machine, the machine of group 1 has the slots 4
to 7. A replacement has the slot of its predecessor, so ranks do not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch_edl.config import Launch
from torch_edl.processes.launcher import Command, ProcessSpec

Address = tuple[str, int]
"""Address of a machine, and a free port there."""


class Ranks:
    """Names the group of each slot, and makes the commands of workers.

    Args:
        begun: True if workers of the job have run, under an earlier master.
    """

    def __init__(self, launch: Launch, *, begun: bool = False) -> None:
        self._launch = launch
        self.begun = begun
        """True once the minimum number of machines had joined. As with torchrun, no worker starts
        before."""
        self._first: Address = ("", 0)
        """The last known address of rank 0."""

    def group_of(self, slot: int) -> int:
        """Return the group to which a slot belongs."""
        return 0 if self._launch.max_nodes == 1 else slot // self._launch.per_node

    def local_rank_of(self, slot: int) -> int:
        """Return the number of a slot within its machine."""
        return slot - self.group_of(slot) * self._launch.per_node

    def begin(self, machines: int) -> bool:
        """Return whether workers may start, now that this number of machines has joined."""
        self.begun = self.begun or machines >= self._launch.min_nodes
        return self.begun

    def lack(self, machines: int) -> str:
        """Return why workers may not start; empty if they may."""
        if self.begun:
            return ""
        return f"{machines} of at least {self._launch.min_nodes} machines have joined"

    def ordered(self, spec: ProcessSpec, machines: Mapping[int, Address]) -> ProcessSpec:
        """Return a worker with its command, which has the variables of torchrun that depend on the
        other machines. Environment variables of a running process cannot change: a script that uses
        torch_edl asks the job for its current rank.

        Args:
            machines: address of each machine by its group; that of the worker is one of them.
        """
        self._first = machines.get(0, self._first)
        host, port = self._first if self._first[0] else machines[min(machines)]
        launch, slot = self._launch, spec.slot
        # A fixed number of machines does not shrink while one of them is being replaced.
        nodes = min(max(launch.min_nodes, len(machines)), launch.max_nodes)
        world_size = str(max(nodes * launch.per_node, slot + 1))
        env = {
            "RANK": str(slot),
            "LOCAL_RANK": str(self.local_rank_of(slot)),
            "GROUP_RANK": str(self.group_of(slot)),
            "ROLE_RANK": str(slot),
            "LOCAL_WORLD_SIZE": str(launch.per_node),
            "WORLD_SIZE": world_size,
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_WORLD_SIZE": world_size,
            # Rank 0 serves the store of a process group that the script makes itself.
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }
        return replace(spec, command=Command(env=env))

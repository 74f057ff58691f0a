"""The launcher of a job on one machine: a node on the master's machine starts the processes."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable, Sequence

from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.node.orders import Nodes, Orders
from torch_edl.processes.launcher import (
    Known,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessSpec,
)
from torch_edl.processes.local import LocalLauncher

log = logging.getLogger(__name__)

NAME = "node"
"""Role and name of the node of the master's machine."""
_POLL_S = 0.01
# Seconds in which the processes must end after their grace period, and then the node.
_ENDS_S = 10.0
# Seconds between two checks of the lock of a node that an earlier master has started.
_LOOK_S = 1.0


class LocalNode:
    """Starts a node before the first process, and sends the orders to the node.

    The node outlives the master: the next master finds the node by its lock, and learns from the
    first report which processes run. If the node ends, the kernel kills all its processes.

    Args:
        incarnation: incarnation of the job's state.
        preload: framework whose workers the node forks, and what else it imports; empty: none.
    """

    def __init__(self, folder: JobFolder, *, incarnation: str, preload: Sequence[str] = ()) -> None:
        self.nodes = Nodes(incarnation)
        self._folder, self._incarnation, self._preload = folder, incarnation, preload
        self._orders: Orders | None = None
        """None while no node runs."""
        self._id = 0
        """Number of the last node that this launcher started."""
        self._adopted = False
        """True if an earlier master has started the node."""
        self._ran: set[tuple[str, int]] = set()
        """Processes that ran under an earlier master, by role and id."""
        self._look_at = 0.0
        self._starter = LocalLauncher(folder.logs)
        self._events: list[ProcessEvent] = []

    def start(self, spec: ProcessSpec) -> None:
        with self.nodes.changed:
            if self._orders is None and not self._begin(spec):
                return
            assert self._orders is not None
            self._orders.start(spec)
            self.nodes.changed.notify_all()

    def adopt(self, known: Sequence[Known]) -> None:
        self._ran = {(each.role, each.id) for each in known if each.pid}
        if not self._folder.has_node():
            self._lose_unseen((each.role, each.id) for each in known)
            return
        with self.nodes.changed:
            orders = Orders()
            for each in known:
                orders.adopt(each)
            self.found(orders)

    def expects_report(self) -> bool:
        """Return whether the node of an earlier master runs, and has not reported to this one."""
        return self._orders is None and self._folder.has_node()

    def found(self, orders: Orders) -> None:
        """Take over the node of an earlier master, which reports. The caller must hold the lock of
        the nodes.

        Args:
            orders: its orders, with the processes that it has reported.
        """
        self._adopted, self._orders = True, orders
        self.nodes.add(NAME, orders)

    def poll(self) -> Sequence[ProcessEvent]:
        ended = self._node_ended(time.monotonic())
        with self.nodes.changed:
            if self._orders is not None:
                self._events += self._orders.collect()
                if ended is not None:
                    self._lose(self._orders, ended)
            events, self._events = self._events, []
        return events

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        with self.nodes.changed:
            if self._orders is not None:
                self._orders.stop(role, id, grace_s=grace_s, now=time.monotonic())
                self.nodes.changed.notify_all()

    def stop_all(self, *, grace_s: float) -> None:
        for role, id in self.members():
            self.stop(role, id, grace_s=grace_s)
        deadline = time.monotonic() + grace_s + _ENDS_S
        while self.members() and time.monotonic() < deadline:
            self.poll()
            time.sleep(_POLL_S)
        with self.nodes.changed:
            if self._orders is None:
                return
            self._orders.end()
            self.nodes.changed.notify_all()
        deadline = time.monotonic() + _ENDS_S
        while self._orders is not None and time.monotonic() < deadline:
            self._look_at = 0.0
            self.poll()
            time.sleep(_POLL_S)
        self._folder.end_node()

    def close(self) -> None:
        """Leave the node and its processes to the next master."""

    def log_path(self, role: str, id: int) -> str:
        return str(self._folder.logs / f"{role}-{id}.log")

    def members(self) -> list[tuple[str, int]]:
        """Return role and id of each process of the node."""
        with self.nodes.changed:
            return self._orders.members if self._orders is not None else []

    def _begin(self, spec: ProcessSpec) -> bool:
        """Start a node. If this fails, add an event and return False."""
        args = ["--job", self._folder.name, "--name", NAME, "--incarnation", self._incarnation]
        args += ["--logs", str(self._folder.logs), "--lock", str(self._folder.node_lock)]
        if self._preload:
            args += ["--preload", *self._preload]
        node = ProcessSpec(
            role=NAME,
            id=self._id,
            module="torch_edl.node",
            args=args,
            env=spec.env,
            end_with_parent=0,  # the next master adopts it
        )
        # If client and master were killed, their node still waits for the next master.
        self._folder.end_node()
        try:
            self._starter.start(node)
        except OSError as error:
            self._events.append(ProcessNotStarted(role=spec.role, id=spec.id, why=str(error)))
            return False
        self._id += 1
        self._adopted, self._orders = False, Orders()
        self.nodes.add(NAME, self._orders)
        return True

    def _node_ended(self, now: float) -> ProcessExit | None:
        if not self._adopted:
            return next(iter(self._starter.poll()), None)
        if now < self._look_at:
            return None
        self._look_at = now + _LOOK_S
        if self._folder.has_node():
            return None
        return ProcessExit(role=NAME, id=0, why="an earlier master started it")

    def _lose(self, orders: Orders, ended: ProcessExit) -> None:
        """Report the end of all processes of a node that has ended: the kernel has killed them."""
        self._orders = None
        self.nodes.remove(NAME)
        if not (orders.leave or ended.code == 0):
            log.error("the node of this job %s; its log is %s", ended.how, self._node_log(ended))
        if self._adopted and orders.heard_at is None:
            self._lose_unseen(orders.members)
            return
        for place, (role, id) in enumerate(orders.members):
            if orders.heard_at is None:
                why = f"the node of this job {ended.how}; its log is {self._node_log(ended)}"
                self._events.append(ProcessNotStarted(role=role, id=id, why=why))
            elif place:
                why = f"its node ended, {ended}"
                self._events.append(ProcessExit(role=role, id=id, why=why, own_fault=False))
            else:
                exit = ProcessExit(role=role, id=id, signal=signal.SIGKILL, why="its node ended")
                self._events.append(exit)

    def _lose_unseen(self, members: Iterable[tuple[str, int]]) -> None:
        """Report the end of processes whose node ended without a report to this master."""
        why = "its node has ended, and only the node could learn how"
        for role, id in members:
            self._events.append(
                ProcessExit(role=role, id=id, why=why)
                if (role, id) in self._ran
                else ProcessNotStarted(role=role, id=id)
            )

    def _node_log(self, ended: ProcessExit) -> str:
        return self._starter.log_path(NAME, ended.id)

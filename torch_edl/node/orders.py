"""What the master wants of its nodes: the side of the master of the call ``NodeReport``.

Orders are states and not messages: each answer names all processes that a node is to run, and all
that it is to end. A call that is lost, late or repeated therefore changes nothing.
"""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch_edl.processes.launcher import (
    Known,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessRuns,
    ProcessSpec,
)
from torch_edl.wire import master_pb2 as pb

# Seconds for which a report waits for new orders.
_WAIT_S = 2.0
# Seconds after the end of its grace period at which a process is overdue.
_OVERDUE_S = 15.0

Key = tuple[str, int]
"""Role and id with which a process was started."""


@dataclass
class _Member:
    role: str
    """The current role of the process; a worker may have become a server."""
    id: int
    order: pb.StartProcess | None = None
    """None for a process of an earlier master, which the node knows if it was started at all."""
    sent: bool = False
    """True if an answer to the node has named the process."""
    runs: bool = False
    """True if the node has reported the process."""
    pid: int = 0
    grace_s: float | None = None
    """Grace period of a process that is to end, seconds; None: it is to run."""
    overdue_at: float = 0.0


class Orders:
    """The processes that the master wants on one node, and what the node reported of them.

    Not thread-safe; see :class:`Nodes`.

    Args:
        machine: name of the machine of the node; empty if it is that of the master.
    """

    def __init__(self, machine: str = "") -> None:
        self.machine = machine
        self.heard = False
        """True once the node has reported."""
        self.leave = False
        """True if the node is to end everything, then itself."""
        self.events: list[ProcessEvent] = []
        """Events that the master has not taken yet."""
        # A node whose master was restarted compares this number with that of the earlier master.
        self.version = secrets.randbits(40)
        self._members: dict[Key, _Member] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def start(self, spec: ProcessSpec) -> None:
        """Order a process, whose role and id were never used before."""
        key = (spec.role, spec.id)
        assert key not in self._members, f"{spec.name} was started before"
        order = pb.StartProcess(role=spec.role, id=spec.id, module=spec.module, args=spec.args)
        self._members[key] = _Member(spec.role, spec.id, order)
        self.version += 1

    def adopt(self, known: Known) -> None:
        """Expect a process that an earlier master has ordered."""
        role, _, id = (known.started_as or f"{known.role}-{known.id}").partition("-")
        self._members[role, int(id)] = _Member(known.role, known.id, sent=True, pid=known.pid)

    def stop(self, role: str, id: int, *, grace_s: float, now: float) -> None:
        """Order the end of a process. A later call may only shorten the grace period."""
        for key, member in self._members.items():
            if (member.role, member.id) == (role, id):
                if not member.sent:
                    del self._members[key]
                    code = 128 + signal.SIGTERM
                    self.events.append(ProcessExit(role=role, id=id, code=code))
                    return
                before = grace_s if member.grace_s is None else member.grace_s
                member.grace_s = min(grace_s, before)
                member.overdue_at = now + member.grace_s + _OVERDUE_S
                self.version += 1
                return

    def rename(self, role: str, id: int, to_role: str, to_id: int) -> None:
        """Record that a process has another role and id from now on."""
        for member in self._members.values():
            if (member.role, member.id) == (role, id):
                member.role, member.id = to_role, to_id

    def end(self) -> None:
        """Order the end of the node."""
        self.leave = True
        self.version += 1

    def drop(self) -> list[Key]:
        """Forget all processes, whose node is gone. Returns the current role and id of each."""
        members = [(each.role, each.id) for each in self._members.values()]
        self._members.clear()
        return members

    @property
    def members(self) -> list[Key]:
        """Current role and id of each process."""
        return [(each.role, each.id) for each in self._members.values()]

    @property
    def graces(self) -> list[float | None]:
        """Grace period of each process, seconds; None for those that are to run."""
        return [each.grace_s for each in self._members.values()]

    def overdue(self, now: float) -> bool:
        """Return whether a process should have ended long ago, so that its node does not work."""
        return any(
            each.grace_s is not None and now >= each.overdue_at for each in self._members.values()
        )

    def report(self, request: pb.NodeReportRequest) -> bool:
        """Record a report. Returns whether there are events."""
        before, self.heard = len(self.events), True
        running = {(each.role, each.id): each for each in request.running}
        ended = {(each.role, each.id): each for each in request.ended}
        for key, member in list(self._members.items()):
            if key in ended:
                del self._members[key]
                self.events.append(_end(member, ended[key], self.machine))
            elif key in running:
                self._runs(member, running[key])
            elif member.order is None and not member.runs:
                # The earlier master stored the start, and died before it sent the order.
                del self._members[key]
                self.events.append(ProcessNotStarted(role=member.role, id=member.id))
        return len(self.events) > before

    def _runs(self, member: _Member, process: pb.RunningProcess) -> None:
        if member.runs and process.pid == member.pid:
            return
        member.runs, member.pid = True, process.pid
        self.events.append(
            ProcessRuns(
                role=member.role,
                id=member.id,
                node=self.machine,
                pid=process.pid,
            )
        )

    def answer(self, request: pb.NodeReportRequest) -> pb.NodeReportResponse:
        """Return all orders, for the answer to a report."""
        answer = pb.NodeReportResponse(leave=self.leave, version=self.version)
        for (role, id), member in self._members.items():
            member.sent = True
            if member.grace_s is not None:
                answer.stop.add(role=role, id=id, grace_s=member.grace_s)
            elif member.order is not None:
                answer.run.append(member.order)
            else:
                answer.run.add(role=role, id=id)
        for each in request.running:
            if (each.role, each.id) not in self._members:
                answer.stop.add(role=each.role, id=each.id, grace_s=0.0)
        return answer


class Nodes:
    """The orders for all nodes of a job, by the name of the node. Thread-safe.

    Args:
        incarnation: incarnation of the job's state; nodes of another one have to leave.
    """

    def __init__(self, incarnation: str) -> None:
        self.changed = threading.Condition()
        """The lock of all orders, notified after each change."""
        self.news: Callable[[], None] = lambda: None
        """Called after a report with events, without the lock."""
        self._incarnation = incarnation
        self._nodes: dict[str, Orders] = {}

    def __getitem__(self, name: str) -> Orders:
        return self._nodes[name]

    def add(self, name: str, orders: Orders) -> None:
        """Expect the reports of a node. The caller must hold ``changed``."""
        self._nodes[name] = orders

    def remove(self, name: str) -> None:
        """Forget a node, which is told to leave if it reports again. The caller must hold
        ``changed``."""
        self._nodes.pop(name, None)
        self.changed.notify_all()

    def report(
        self, request: pb.NodeReportRequest, is_active: Callable[[], bool]
    ) -> pb.NodeReportResponse:
        """Record the report of a node. Returns its orders, once they differ from those that the
        node has.

        Args:
            is_active: returns False if nobody waits for the answer any longer.
        """
        with self.changed:
            orders = self._find(request)
            found = orders is not None and orders.report(request)
        if found:
            self.news()
        with self.changed:
            if request.waits:
                self.changed.wait_for(
                    lambda: not is_active() or self._has_orders(request), timeout=_WAIT_S
                )
            orders = self._find(request)
            if orders is None:
                return pb.NodeReportResponse(leave=True)
            return orders.answer(request)

    def _find(self, request: pb.NodeReportRequest) -> Orders | None:
        # A master that lost the state numbers its processes from 0 again.
        return self._nodes.get(request.node) if request.incarnation == self._incarnation else None

    def _has_orders(self, request: pb.NodeReportRequest) -> bool:
        orders = self._find(request)
        return orders is None or orders.version != request.version


def _end(member: _Member, ended: pb.EndedProcess, machine: str) -> ProcessEvent:
    if ended.not_started:
        return ProcessNotStarted(role=member.role, id=member.id, why=ended.why)
    code = ended.code
    failed = code not in (0, 128 + signal.SIGTERM)
    return ProcessExit(
        role=member.role,
        id=member.id,
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        why=ended.why if failed else "",
        own_fault=ended.own_fault if ended.HasField("own_fault") else None,
        node=machine,
        blames_node=failed and bool(machine),
    )


@runtime_checkable
class NodeLauncher(Protocol):
    """A launcher whose processes are started by nodes."""

    nodes: Nodes

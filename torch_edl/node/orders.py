"""The orders of the master to its nodes: the master's side of the call ``NodeReport``.

Orders describe the wanted state: each answer names all processes that the node should run, and all
that it should end. A call that is lost, late or repeated therefore changes nothing.
"""

from __future__ import annotations

import dataclasses
import secrets
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch_edl.processes.launcher import (
    Command,
    Known,
    ProcessEvent,
    ProcessExit,
    ProcessFails,
    ProcessNotStarted,
    ProcessRuns,
    ProcessSpec,
)
from torch_edl.wire import master_pb2 as pb

# Maximum time for which the answer to a report waits for new orders, seconds.
_WAIT_S = 2.0
# A process that still runs this long after the end of its grace period is overdue; seconds.
_OVERDUE_S = 15.0

Key = tuple[str, int]
"""Role and id of a process."""


@dataclass
class _Member:
    order: pb.StartProcess | None = None
    """None for a process of an earlier master. The node has its order, unless that master died
    before it sent the order."""
    sent: bool = False
    """True if an answer to the node has named the process."""
    runs: bool = False
    """True if the node has reported the process."""
    fails: bool = False
    """True if the node has reported that the process is about to fail."""
    pid: int = 0
    grace_s: float | None = None
    """Grace period in seconds of a process that should end; None if the process should run."""
    overdue_at: float = 0.0


class Orders:
    """The processes that the master wants on one node, and what the node has reported about them.

    Not thread-safe; see :class:`Nodes`.

    Args:
        machine: name of the machine of the node; empty for the machine of the master.
    """

    def __init__(self, machine: str = "") -> None:
        self.machine = machine
        self.heard_at: float | None = None
        """Time of the last report, monotonic seconds; None before the first report."""
        self.reported = False
        """Set by each report; the launcher resets it."""
        self.leaves = False
        """True if the node accepts no more processes."""
        self.told_to_leave = False
        """True once an answer has told the node to leave."""
        self.leave = False
        """True if the node should end all its processes, then itself."""
        self.why = ""
        """Why the node has nothing to run yet, for its user; empty if there is no reason."""
        self.address: tuple[str, int] = ("", 0)
        """Address at which other machines reach the machine of the node, and a free port there; as
        the node has reported them."""
        self.events: list[ProcessEvent] = []
        """Events that the launcher has not collected yet."""
        self._unstored: set[Key] = set()
        """Ended processes whose end is not in the stored state of the job. The node keeps the end
        of such a process, so that the next master learns it."""
        self._collected: set[Key] = set()
        """Those of them whose end the launcher has collected."""
        # Random: a node may still know the version of an earlier master, and must not take the
        # orders of this master for those that it already has.
        self.version = secrets.randbits(40)
        self._members: dict[Key, _Member] = {}

    def start(self, spec: ProcessSpec) -> None:
        """Order the start of a process. Its role and id must not have been used before."""
        key = (spec.role, spec.id)
        assert key not in self._members, f"{spec.name} was started before"
        self._members[key] = _Member(order_of(spec))
        self.version += 1

    def adopt(self, known: Known) -> None:
        """Take over a process that an earlier master has ordered."""
        self._members[known.role, known.id] = _Member(sent=True, pid=known.pid)

    def stop(self, role: str, id: int, *, grace_s: float, now: float) -> None:
        """Order the end of a process. A later call may only shorten the grace period."""
        member = self._members.get((role, id))
        if member is None:
            return
        if not member.sent:
            del self._members[role, id]
            code = 128 + signal.SIGTERM
            self.events.append(ProcessExit(role=role, id=id, code=code))
            return
        before = grace_s if member.grace_s is None else member.grace_s
        member.grace_s = min(grace_s, before)
        member.overdue_at = now + member.grace_s + _OVERDUE_S
        self.version += 1

    def collect(self) -> list[ProcessEvent]:
        """Return and forget the events since the last call."""
        events, self.events = self.events, []
        self._collected |= self._unstored
        return events

    def stored(self) -> None:
        """Record that the state of the job contains all collected events."""
        self._unstored -= self._collected
        self._collected.clear()

    def acknowledges(self, request: pb.NodeReportRequest) -> bool:
        """Return whether an answer to the request acknowledges ends of processes."""
        return any((each.role, each.id) not in self._unstored for each in request.ended)

    def end(self) -> None:
        """Order the end of the node."""
        self.leave = True
        self.version += 1

    @property
    def members(self) -> list[Key]:
        """Role and id of each process."""
        return list(self._members)

    @property
    def graces(self) -> list[float | None]:
        """Grace period of each process in seconds; None for processes that should run."""
        return [each.grace_s for each in self._members.values()]

    def overdue(self, now: float) -> bool:
        """Return whether a process is overdue, which shows that the node does not work."""
        return any(
            each.grace_s is not None and now >= each.overdue_at for each in self._members.values()
        )

    def report(self, request: pb.NodeReportRequest, now: float) -> bool:
        """Record a report. Returns whether there are events."""
        before, self.heard_at, self.reported = len(self.events), now, True
        self.leaves |= request.leaves
        self.address = request.address, request.port
        running = {(each.role, each.id): each for each in request.running}
        ended = {(each.role, each.id): each for each in request.ended}
        for key, end in ended.items():  # in the order in which the processes ended
            if self._members.pop(key, None) is not None:
                self._unstored.add(key)
                self.events.append(_end(end, self.machine))
        for key, member in list(self._members.items()):
            if key in running:
                self._runs(key, member, running[key])
            elif member.order is None and not member.runs:
                # The earlier master stored the start, and died before it sent the order.
                del self._members[key]
                self.events.append(ProcessNotStarted(role=key[0], id=key[1]))
        return len(self.events) > before

    def _runs(self, key: Key, member: _Member, process: pb.RunningProcess) -> None:
        if process.failing and not member.fails:
            member.fails = True
            self.events.append(ProcessFails(role=key[0], id=key[1]))
        if member.runs and process.pid == member.pid:
            return
        member.runs, member.pid = True, process.pid
        self.events.append(
            ProcessRuns(
                role=key[0],
                id=key[1],
                node=self.machine,
                pid=process.pid,
                log=process.log,
            )
        )

    def answer(self, request: pb.NodeReportRequest) -> pb.NodeReportResponse:
        """Return all orders, for the answer to a report."""
        answer = pb.NodeReportResponse(leave=self.leave, version=self.version, why=self.why)
        self.told_to_leave |= self.leave
        for (role, id), member in self._members.items():
            member.sent = True
            if member.grace_s is not None:
                answer.stop.add(role=role, id=id, grace_s=member.grace_s)
            elif member.order is not None:
                answer.run.append(member.order)
            else:
                answer.run.add(role=role, id=id)
        for ended in request.ended:
            if (ended.role, ended.id) in self._unstored:
                answer.run.add(role=ended.role, id=ended.id)
        for each in request.running:
            if (each.role, each.id) not in self._members:
                answer.stop.add(role=each.role, id=each.id, grace_s=0.0)
        return answer


class Nodes:
    """The orders for all nodes of a job, by the name of the node. Thread-safe.

    Args:
        incarnation: incarnation of the job's state; a node of another incarnation must leave.
    """

    def __init__(self, incarnation: str) -> None:
        self.changed = threading.Condition()
        """Condition whose lock guards all orders; notified after each change."""
        self.news: Callable[[], None] = lambda: None
        """Called after a report that produced events; the lock is not held."""
        self.admit: Callable[[pb.NodeReportRequest], pb.NodeReportResponse | None] = _refuse
        """Called for the report of an unknown node; the lock is held. Returns the answer for a node
        that may not join, or None after :meth:`add`."""
        self._end = pb.NodeReportResponse(leave=True)
        self._incarnation = incarnation
        self._nodes: dict[str, Orders] = {}

    def stored(self) -> None:
        """Record that the state of the job contains all events that the launcher has collected: the
        nodes may forget the ends of these processes."""
        with self.changed:
            for orders in self._nodes.values():
                orders.stored()
            self.changed.notify_all()

    def over(self, why: str, *, failed: bool) -> None:
        """Record how the job has ended, for nodes that must leave.

        Args:
            why: reason of the failure or of the stop; empty if the job finished.
        """
        with self.changed:
            self._end = pb.NodeReportResponse(leave=True, why=why, failed=failed)

    def add(self, name: str, orders: Orders) -> None:
        """Add a node and its orders. The caller must hold ``changed``."""
        self._nodes[name] = orders

    def remove(self, name: str) -> None:
        """Remove a node. If the node reports again, the answer tells it to leave. The caller must
        hold ``changed``."""
        self._nodes.pop(name, None)
        self.changed.notify_all()

    def report(
        self, request: pb.NodeReportRequest, is_active: Callable[[], bool]
    ) -> pb.NodeReportResponse:
        """Record the report of a node and return the orders for this node. If the request waits,
        return when the orders differ from those that the node has, or after two seconds.

        Args:
            is_active: returns False if the node no longer waits for the answer.
        """
        with self.changed:
            orders = self._find(request)
            if orders is None:
                refusal = self.admit(request)
                if refusal is not None:
                    return refusal
                orders = self._find(request)
            found = orders is not None and orders.report(request, time.monotonic())
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
            answer = orders.answer(request)
            if answer.leave:
                answer.MergeFrom(self._end)
            return answer

    def _find(self, request: pb.NodeReportRequest) -> Orders | None:
        # A master that lost its state numbers processes from 0 again: the ids of a node of another
        # incarnation mean other processes.
        return self._nodes.get(request.node) if request.incarnation == self._incarnation else None

    def _has_orders(self, request: pb.NodeReportRequest) -> bool:
        orders = self._find(request)
        if orders is None or orders.version != request.version:
            return True
        return orders.acknowledges(request)


def order_of(spec: ProcessSpec) -> pb.StartProcess:
    """Return the order to start a process."""
    command = pb.Command(**dataclasses.asdict(spec.command)) if spec.command else None
    return pb.StartProcess(
        role=spec.role,
        id=spec.id,
        module=spec.module,
        args=spec.args,
        command=command,
    )


def spec_of(order: pb.StartProcess) -> ProcessSpec:
    """Return the process that an order starts."""
    command = None
    if order.HasField("command"):
        sent = order.command
        command = Command(
            words=tuple(sent.words),
            env=dict(sent.env),
            stdout=sent.stdout,
            stderr=sent.stderr,
            error_file=sent.error_file,
            terminates_group=sent.terminates_group,
        )
    return ProcessSpec(
        role=order.role,
        id=order.id,
        module=order.module,
        args=tuple(order.args),
        command=command,
    )


def _refuse(request: pb.NodeReportRequest) -> pb.NodeReportResponse:
    return pb.NodeReportResponse(leave=True)


def _end(ended: pb.EndedProcess, machine: str) -> ProcessEvent:
    if ended.not_started:
        return ProcessNotStarted(role=ended.role, id=ended.id, why=ended.why)
    code = ended.code
    failed = code not in (0, 128 + signal.SIGTERM)
    return ProcessExit(
        role=ended.role,
        id=ended.id,
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        why=ended.why if failed else "",
        own_fault=ended.own_fault if ended.HasField("own_fault") else None,
        node=machine,
        blames_node=failed and bool(machine),
        open_loop=ended.open_loop if ended.HasField("open_loop") else None,
        error=ended.error,
        traceback=ended.traceback,
    )


@runtime_checkable
class NodeLauncher(Protocol):
    """A launcher whose processes are started by nodes."""

    nodes: Nodes

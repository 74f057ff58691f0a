"""The loop of a node: report to the master, and start, watch and end processes as ordered."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import signal
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import grpc

from torch_edl.node.children import Children
from torch_edl.node.orders import Key, spec_of
from torch_edl.processes.launcher import ProcessExit, ProcessSpec
from torch_edl.processes.signals import StopSignals
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import REFUSED, Stub, unanswered

log = logging.getLogger(__name__)

_AGAIN_S = 0.5
_CALL_S = 5.0
# A call that waits is answered within two seconds. After this time, the node makes a call on its
# other connection too: a connection may hang after the network was cut, until the call times out.
_OVERDUE_S = 2.5
# Seconds within which the end of a process is noticed even if SIGCHLD is missed.
_POLL_S = 0.5
# Seconds for which a node that has no process left tries to report the ends of its processes.
_FAREWELL_S = 3.0
# Effectively no limit: a process exits at the end of its own grace period, and the platform that
# sent SIGTERM to the node kills the node later.
_GRACE_S = 3600.0


class Node:
    """The loop and the state of one node. Must be used from the main thread.

    The node has two connections to the master: on one, a call waits for new orders; on the other,
    the node reports each change at once.

    Args:
        identity: fields that are equal in all reports: name and machine of the node, and the
            incarnation of the job's state for which the node was started.
        waiting: client of the master for calls that wait for new orders.
        reporting: client of the master for calls that are answered at once.
        away_s: seconds without an answer from a master after which the node ends.
        wakes: each item wakes the loop. This is a queue and not an event, because a signal handler
            can safely put an item into a ``SimpleQueue``.
        signals: signals that end the node.
        grace_s: seconds between SIGTERM and SIGKILL of the processes, once the node must end.
    """

    poll_s = _POLL_S
    """Seconds within which the loop makes its next turn, also if nothing wakes it."""

    def __init__(
        self,
        identity: pb.NodeReportRequest,
        children: Children,
        waiting: Stub,
        reporting: Stub,
        *,
        away_s: float,
        wakes: queue.SimpleQueue[None],
        signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT),
        grace_s: float = _GRACE_S,
    ) -> None:
        self._identity = identity
        self._has_joined = bool(identity.host)
        self._children = children
        self._stubs = {True: waiting, False: reporting}
        self._calls: dict[bool, tuple[Future[Any], pb.NodeReportRequest]] = {}
        self._due: dict[bool, float] = {True: 0.0, False: math.inf}
        self._away_s = away_s
        self._version = 0
        self._running: dict[Key, pb.RunningProcess] = {}
        self._ordered: dict[Key, ProcessSpec] = {}
        """Processes that are about to be started."""
        self._begun: set[Key] = set()
        """All processes that were ever ordered; none of them is started again."""
        self._ended: dict[Key, pb.EndedProcess] = {}
        """Ended processes that the master has not acknowledged."""
        self._heard_at = time.monotonic()
        self._leaves = False
        """True if the master no longer needs the node."""
        self._drains = False
        """True after a signal, while the processes end."""
        self._empty_since: float | None = None
        """Time at which the last process of a draining node ended; None before."""
        self._code = 0
        self._why = ""
        """Last reason of the master why this node waits or must leave."""
        self._problem = ""
        """Error of the last report; empty if the master has answered it."""
        self._grace_s = grace_s
        self._wakes = wakes
        self._signals = StopSignals(signals, wake=self._wake)

    def run(self) -> int:
        """Run processes until the master or a signal ends the node.

        After SIGTERM, the node starts no more processes, sends SIGTERM to those that run, and ends
        after the last of them. A node that has joined reports these ends. Any other node does not:
        the platform tells why it has ended the machine or the pod. SIGINT is SIGTERM for a node
        that has joined; any other one kills its processes. A second signal, or an answer that the
        node is no longer needed, kills them too.

        Returns:
            The exit code: 0 if the master ended the node, 1 if the job failed, the master rejects
            this node, or no master answered for ``away_s`` seconds, 128 + N after signal N.
        """
        self._signals.install()
        before = signal.signal(signal.SIGCHLD, lambda *_: self._wake())
        try:
            while not self._is_over(time.monotonic()):
                self._turn(time.monotonic())
                with contextlib.suppress(queue.Empty):
                    self._wakes.get(timeout=self.poll_s)
            return self._signals.exit_code or self._code
        finally:
            self._children.stop_all(grace_s=0.0)
            signal.signal(signal.SIGCHLD, before)
            self._signals.restore()

    def _is_over(self, now: float) -> bool:
        if not self._drains and now - self._heard_at > self._away_s:
            log.error("no answer from a master for %g s: this node ends", self._away_s)
            self._code = 1
            return True
        if not self._signals.count:
            return self._leaves
        self._drain()
        if not self._has_joined:
            return self._signals.first == signal.SIGINT or not self._children.is_running
        if self._leaves or self._signals.count > 1:
            return True
        return self._has_reported(now)

    @property
    def _is_leaving(self) -> bool:
        """True if the job continues without this node."""
        return self._signals.count > 0

    def _drain(self) -> None:
        """Start no more processes, and send SIGTERM to those that run."""
        if self._drains:
            return
        self._drains = True
        self._due[False] = 0.0
        for role, id in self._running:
            self._children.stop(role, id, grace_s=self._grace_s)

    def _has_reported(self, now: float) -> bool:
        """Return whether a draining node has reported the ends of all its processes, or has tried
        for long enough."""
        if self._running:
            return False
        told = not self._ended and False not in self._calls and self._due[False] == math.inf
        return told or self._empty_s(now) > _FAREWELL_S

    def _empty_s(self, now: float) -> float:
        """Return the seconds since the last process of a draining node has ended."""
        if self._empty_since is None:
            self._empty_since = now
        return now - self._empty_since

    def _turn(self, now: float) -> None:
        for exit in self._children.poll():
            if self._has_joined or not self._drains:
                self._note_end(exit)
        for waits, (call, request) in list(self._calls.items()):
            if call.done():
                del self._calls[waits]
                self._heed(call, request, waits, now)
        ready = [] if self._drains else list(filter(self._is_ready, self._ordered.values()))
        for spec in self._prepared(ready):
            del self._ordered[spec.role, spec.id]
            self._start(spec)
        if now - self._heard_at > _OVERDUE_S and self._due[False] == math.inf:
            self._due[False] = now
        for waits in (True, False):
            if waits not in self._calls and now >= self._due[waits]:
                self._call(waits)

    def _is_ready(self, spec: ProcessSpec) -> bool:
        """Return whether a process can be started now."""
        return self._children.is_ready_for(spec)

    def _prepared(self, specs: Sequence[ProcessSpec]) -> Sequence[ProcessSpec]:
        """Return processes that start now as they are passed to the launcher."""
        return specs

    def _call(self, waits: bool) -> None:
        request = pb.NodeReportRequest(waits=waits, version=self._version, leaves=self._is_leaving)
        request.MergeFrom(self._identity)
        request.running.extend(self._running.values())
        for role, id in self._ordered:
            request.running.add(role=role, id=id)
        request.ended.extend(self._ended.values())
        # A call that waits is repeated at once; the other call is made only after a change.
        self._due[waits] = 0.0 if waits else math.inf
        call = self._stubs[waits].start(request, timeout_s=_CALL_S)
        call.add_done_callback(lambda _: self._wake())
        self._calls[waits] = call, request

    def _heed(
        self, call: Future[Any], request: pb.NodeReportRequest, waits: bool, now: float
    ) -> None:
        try:
            answer = call.result()
        except grpc.RpcError as error:
            self._problem = unanswered(error)
            if error.code() in REFUSED:
                self._why = error.details() or error.code().name.lower()
                log.error("the master rejects this node: %s", self._why)
                self._leaves, self._code = True, 1
            self._due[waits] = now + _AGAIN_S
            return
        self._heard_at, self._problem = now, ""
        if answer.HasField("job"):
            self._identity.incarnation = answer.job.incarnation
        self._leaves = self._leaves or answer.leave
        self._code = int(answer.leave and answer.failed)
        self._say(answer)
        if not (answer.version or answer.HasField("job")):  # the node is not admitted
            self._due[waits] = now + _AGAIN_S
        self._why = answer.why
        self._version = answer.version
        wanted = {(each.role, each.id) for each in (*answer.run, *answer.stop)}
        # An ended process of the request is acknowledged if the answer no longer names it.
        for each in request.ended:
            if (each.role, each.id) not in wanted:
                self._ended.pop((each.role, each.id), None)
        for each in answer.stop:
            self._stop(each)
        for order in answer.run:
            key = (order.role, order.id)
            # An order without a program is for a process that already runs.
            has_program = order.module or order.HasField("command")
            if key not in self._begun and has_program and not self._leaves:
                self._begun.add(key)
                self._ordered[key] = spec_of(order)

    def _say(self, answer: pb.NodeReportResponse) -> None:
        """Log why the node waits or must leave."""
        if answer.leave and not answer.why and self._has_joined:
            log.info("the job is over")
        if answer.why and answer.why != self._why:
            log.log(logging.ERROR if answer.failed else logging.WARNING, "%s", answer.why)

    def _start(self, spec: ProcessSpec) -> None:
        role, id = spec.role, spec.id
        try:
            pid = self._children.start(spec)
        except OSError as error:
            log.error("%s cannot be started: %s", spec.name, error)
            self._end(pb.EndedProcess(role=role, id=id, not_started=True, why=str(error)))
            return
        self._running[role, id] = pb.RunningProcess(role=role, id=id, pid=pid)
        self._started(spec, self._running[role, id])
        self._due[False] = 0.0

    def _started(self, spec: ProcessSpec, report: pb.RunningProcess) -> None:
        """Add to the report of a process that was started."""

    def _stop(self, order: pb.StopProcess) -> None:
        key = (order.role, order.id)
        if key in self._running:
            self._children.stop(order.role, order.id, grace_s=order.grace_s)
        elif key in self._ordered or key not in self._begun:
            self._begun.add(key)
            self._ordered.pop(key, None)
            code = 128 + signal.SIGTERM
            self._end(pb.EndedProcess(role=order.role, id=order.id, code=code))

    def _note_end(self, exit: ProcessExit) -> None:
        del self._running[exit.role, exit.id]
        code = -exit.signal if exit.signal is not None else exit.code or 0
        why = exit.why or self._children.last_line(exit.role, exit.id)
        ended = pb.EndedProcess(role=exit.role, id=exit.id, code=code, why=why)
        if exit.own_fault is not None:
            ended.own_fault = exit.own_fault
        if exit.open_loop is not None:
            ended.open_loop = exit.open_loop
        self._explain(ended)
        self._end(ended)

    def _explain(self, ended: pb.EndedProcess) -> None:
        """Add to the report of a process that has ended."""

    def _end(self, ended: pb.EndedProcess) -> None:
        self._ended[ended.role, ended.id] = ended
        self._due[False] = 0.0

    def _wake(self) -> None:
        self._wakes.put(None)

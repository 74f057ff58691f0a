"""The launcher of a job with nodes that join: a model file on several machines, or a script.

:mod:`master.state.workforce.placement` decides which node starts a process of a model file. The
workers of a script all run on nodes that join, and the slot of a worker decides on which one, see
:mod:`torch_edl.node.ranks`.

A node joins by its first report, and reports every two seconds. If neither a node nor one of its
workers has reported for ``--heartbeat-timeout``, its processes are lost with their machine; if the
node reports again, the answer tells it to end them.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from master.runtime import local_node
from master.runtime.local_node import LocalNode
from master.state.workforce.placement import WORKER, Room, place
from torch_edl.config import Experiment, JobConfig
from torch_edl.config.environment import ENV_HOST, ENV_NOTICE
from torch_edl.config.parts import MOST_WORKERS
from torch_edl.errors import UsageError
from torch_edl.events import MachineJoined, MachineLeft
from torch_edl.node.orders import Key, Orders
from torch_edl.node.ranks import Ranks
from torch_edl.processes.launcher import (
    Known,
    LauncherEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessSpec,
    ProcessWaits,
)
from torch_edl.training.contract.source_files import sources
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.endpoint import split

log = logging.getLogger(__name__)

# A node reports every two seconds. One that has been silent for this long gets no more processes.
_AWAKE_S = 8.0
# Pause of this process after which the silence of nodes is not counted, seconds.
_PAUSE_S = 2.0
_POLL_S = 0.01
# Seconds in which the processes must end after their grace period, and then the nodes.
_ENDS_S = 10.0
# Lost nodes, and processes of other machines, that are remembered.
_REMEMBERED = 10_000
_HERE = "here"
# Maximum size of the code that is sent to a node that joins.
_MOST_CODE_BYTES = 16 << 20
_SHARED = ("PYTHONHASHSEED",)


@dataclass
class _Joined:
    """A node of another machine."""

    name: str
    host: str
    slots: int
    orders: Orders
    group: int = -1
    """Number of the machine of a script, see :mod:`torch_edl.node.ranks`; -1 if unknown."""
    has_begun: bool = False
    """True once the node was ordered to start a worker of a script."""


class Machines:
    """Starts processes on the machine of the master and on machines that join.

    Args:
        local: launcher for the machine of the master.
        incarnation: incarnation of the job's state.
        preload: framework whose workers the nodes fork, and what else they import; empty: none.
        mark: file in a folder that all machines must share; None if there is no such folder.
    """

    def __init__(
        self,
        local: LocalNode,
        config: JobConfig,
        *,
        incarnation: str,
        preload: Sequence[str],
        mark: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nodes = local.nodes
        self.nodes.admit = self._admit
        self._local, self._config, self._clock = local, config, clock
        self._incarnation, self._preload, self._mark = incarnation, preload, mark
        self._host = os.uname().nodename
        self.hears: Callable[[int], bool] = lambda worker: False
        """Returns whether a worker sends heartbeats. A node that is paused is not lost while one of
        its workers does."""
        self._ranks = Ranks(config.launch) if config.launch is not None else None
        self._timeout_s = config.cluster.heartbeat_timeout_s
        self._joined: dict[str, _Joined] = {}
        self._lost: dict[str, None] = {}
        """Names of nodes that were lost; they may not join again."""
        self._waiting: dict[Key, tuple[ProcessSpec, str]] = {}
        """Processes without a node, with the last reported reason."""
        self._unclaimed: dict[Key, Known] = {}
        """Processes of an earlier master that no node has reported yet."""
        self._stops: dict[Key, float] = {}
        """Grace periods in seconds of unclaimed processes that should end."""
        self._unclaimed_until = 0.0
        self._expects_local = False
        """True if the local node of an earlier master runs, and has not reported yet."""
        self._lack = ""
        """Why the processes that wait have no node."""
        self._begun = False
        """True once the minimum number of machines had joined."""
        self._events: list[LauncherEvent] = []
        self._where: dict[Key, str] = {}
        """Machine of each process that was placed elsewhere, also of ended ones."""
        self._slots: dict[Key, int] = {}
        """Slots of the processes of an earlier master."""
        self._polled_at = clock()

    # ---- the launcher ----

    def start(self, spec: ProcessSpec) -> None:
        with self.nodes.changed:
            self._waiting[spec.role, spec.id] = spec, ""
        self._place()

    def adopt(self, known: Sequence[Known]) -> None:
        with self.nodes.changed:
            self._unclaimed = {(each.role, each.id): each for each in known}
            self._unclaimed_until = self._clock() + self._timeout_s
            self._slots = {(each.role, each.id): each.slot for each in known}
            workers = [each for each in known if self._ranks is None or each.role == WORKER]
            self._begun = any(each.ran for each in workers)
            if self._ranks is not None:
                self._ranks.begun = self._begun
        self._expects_local = self._local.expects_report()

    def poll(self) -> Sequence[LauncherEvent]:
        now = self._clock()
        paused_s = now - self._polled_at - _PAUSE_S
        self._polled_at = now
        heard = self._local.poll()
        with self.nodes.changed:
            self._events += heard
            if paused_s > 0:
                self._excuse(paused_s + _PAUSE_S)
            for node in list(self._joined.values()):
                self._events += node.orders.collect()
                silent_s = now - (node.orders.heard_at or now)
                timeout_s = self._timeout_s
                if (graces := node.orders.graces) and None not in graces:  # all are to end
                    timeout_s = min(timeout_s, _AWAKE_S)
                if silent_s > timeout_s and not self._is_heard(node.orders.members):
                    self._lose(node, f"no report from {node.host} for {silent_s:.0f} s")
                elif node.orders.leaves and not node.orders.members:
                    self._events.append(MachineLeft(host=node.host))
                    self._forget(node)
            if (self._unclaimed or self._expects_local) and now >= self._unclaimed_until:
                self._give_up()
        self._place()
        with self.nodes.changed:
            events, self._events = self._events, []
        return events

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        key = (role, id)
        with self.nodes.changed:
            if key in self._unclaimed:
                self._stops[key] = min(grace_s, self._stops.get(key, grace_s))
                return
            if key in self._waiting:
                del self._waiting[key]
                code = 128 + signal.SIGTERM
                self._events.append(ProcessExit(role=role, id=id, code=code))
                return
            for node in self._joined.values():
                if key in node.orders.members:
                    node.orders.stop(role, id, grace_s=grace_s, now=self._clock())
                    self.nodes.changed.notify_all()
                    return
        self._local.stop(role, id, grace_s=grace_s)

    def stop_all(self, *, grace_s: float) -> None:
        deadline = self._clock() + grace_s + _ENDS_S
        for role, id in self._members():
            self.stop(role, id, grace_s=grace_s)
        while self._members() and self._clock() < deadline:
            self.poll()
            time.sleep(_POLL_S)
        self.poll()  # the last ends
        with self.nodes.changed:
            for node in self._joined.values():
                node.orders.end()
            self.nodes.changed.notify_all()
        self._local.stop_all(grace_s=0.0)
        deadline = self._clock() + _ENDS_S
        while not self._all_told() and self._clock() < deadline:
            time.sleep(_POLL_S)
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)

    def log_path(self, role: str, id: int) -> str:
        host = self._where.get((role, id))
        return f"output of the node on {host}" if host else self._local.log_path(role, id)

    def close(self) -> None:
        self._local.close()

    # ---- nodes that join, called with the lock of the nodes ----

    def _admit(self, request: pb.NodeReportRequest) -> pb.NodeReportResponse | None:
        """Answer an unknown node, or add it and return None."""
        try:
            _require_same_experiment(self._config, request)
        except UsageError as error:
            return pb.NodeReportResponse(leave=True, failed=True, why=str(error))
        if not request.incarnation:
            return pb.NodeReportResponse(job=self._job())
        if request.incarnation != self._incarnation:
            why = "the job was started anew; join it again"
            return pb.NodeReportResponse(leave=True, failed=True, why=why)
        # The node of a script may join again: it is told to end the processes that were lost.
        if request.node in self._lost and self._ranks is None:
            why = f"this node was declared lost: no report for {self._timeout_s:g} s"
            return pb.NodeReportResponse(leave=True, failed=True, why=why)
        if request.node == local_node.NAME:
            orders = Orders()
            self._claim(request, orders)
            self._local.found(orders)
            self._expects_local = False
            return None
        if request.leaves:
            return pb.NodeReportResponse(leave=True)
        cluster, ranks = self._config.cluster, self._ranks
        most, count = cluster.max_nodes, len(self._joined) + 1
        if self._config.launch is not None:
            most, count = self._config.launch.max_nodes, len(self._joined)
        if count >= most:
            s = "s" * (most != 1)
            why = f"the job has its {most} machine{s} (--nnodes), this one waits for a free place"
            return pb.NodeReportResponse(why=why)
        slots, orders = min(cluster.slots, request.slots or cluster.slots), Orders(request.host)
        if ranks is not None:
            slots = request.slots
        node = _Joined(name=request.node, host=request.host, slots=slots, orders=orders)
        self._claim(request, orders)
        for key in orders.members:
            self._note_where(key, node.host)
            if ranks is not None:
                node.group, node.has_begun = ranks.group_of(self._slots[key]), True
        self._joined[node.name] = node
        self.nodes.add(node.name, orders)
        again = bool(request.running)
        self._events.append(MachineJoined(host=node.host, slots=slots, again=again))
        return None

    def _claim(self, request: pb.NodeReportRequest, orders: Orders) -> None:
        """Add the processes of an earlier master that a node reports to its orders."""
        reported = [(each.role, each.id) for each in request.running]
        reported += [(each.role, each.id) for each in request.ended]
        for key in reported:
            known = self._unclaimed.pop(key, None)
            if known is not None:
                orders.adopt(known)
                if (grace_s := self._stops.pop(key, None)) is not None:
                    orders.stop(*key, grace_s=grace_s, now=self._clock())

    def _job(self) -> pb.JobOfNode:
        config = self._config
        if self._ranks is not None:
            return pb.JobOfNode(name=config.name, incarnation=self._incarnation)
        file = Path(config.model_file)
        code: Mapping[str, bytes] = {}
        digest = ""
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            code = sources(file, file.parent, fix="torch-edl join --model-file FILE names a copy")
        except (OSError, UsageError) as error:
            log.warning("the code of the job cannot be sent to a machine that joins: %s", error)
        if sum(map(len, code.values())) > _MOST_CODE_BYTES:
            code = {}
        environment = {name: os.environ[name] for name in _SHARED if name in os.environ}
        if config.process_notice:
            environment[ENV_NOTICE] = config.process_notice
        return pb.JobOfNode(
            name=config.name,
            incarnation=self._incarnation,
            preload=self._preload,
            environment=environment,
            model_file=config.model_file,
            digest=digest,
            code=code,
            folder=str(self._mark.parent) if self._mark is not None else "",
            mark=self._mark.name if self._mark is not None else "",
        )

    def _excuse(self, paused_s: float) -> None:
        """Do not count a pause of this process as silence of the nodes."""
        self._unclaimed_until += paused_s
        for node in self._joined.values():
            if node.orders.heard_at is not None:
                node.orders.heard_at += paused_s

    def _lose(self, node: _Joined, why: str) -> None:
        """Report the end of all processes of a node."""
        self._events.append(MachineLeft(host=node.host, why=why))
        for role, id in node.orders.members:
            lost = f"its machine {node.host} is lost"
            self._events.append(
                ProcessExit(role=role, id=id, why=lost, own_fault=False, node=node.host)
            )
        self._lost[node.name] = None
        while len(self._lost) > _REMEMBERED:
            del self._lost[next(iter(self._lost))]
        self._forget(node)

    def _forget(self, node: _Joined) -> None:
        del self._joined[node.name]
        self.nodes.remove(node.name)

    def _note_where(self, key: Key, host: str) -> None:
        self._where[key] = host
        while len(self._where) > _REMEMBERED:
            del self._where[next(iter(self._where))]

    def _is_heard(self, processes: Iterable[Key]) -> bool:
        return any(role == WORKER and self.hears(id) for role, id in processes)

    def _give_up(self) -> None:
        """Report the processes of an earlier master that no node has reported."""
        heard = {key: each for key, each in self._unclaimed.items() if self._is_heard([key])}
        for (role, id), known in self._unclaimed.items():
            if (role, id) in heard:  # its node is paused
                continue
            why = "no machine has reported it since the restart of the master"
            self._events.append(
                ProcessExit(role=role, id=id, why=why, own_fault=False)
                if known.ran
                else ProcessNotStarted(role=role, id=id)
            )
        self._unclaimed = heard
        self._stops = {key: grace_s for key, grace_s in self._stops.items() if key in heard}
        self._expects_local = False

    # ---- placement ----

    def _place(self) -> None:
        """Start each waiting process that has room, and report why the others wait."""
        starts: list[ProcessSpec] = []
        with self.nodes.changed:
            awake = [node for node in self._joined.values() if self._is_awake(node)]
            if self._ranks is not None:
                self._number(self._ranks)
            if not self._waiting:
                return
            if self._ranks is not None:
                found = self._slots_of_script(self._ranks, awake)
            else:
                found = self._rooms(awake)
            for key, name in found.items():
                spec, _ = self._waiting.pop(key)
                if name == _HERE:
                    starts.append(spec)
                    continue
                node = self._joined[name]
                self._note_where(key, node.host)
                if self._ranks is not None:
                    machines = {each.group: each.orders.address for each in awake}
                    spec, node.has_begun = self._ranks.ordered(spec, machines), True
                node.orders.start(spec)
            if found:
                self.nodes.changed.notify_all()
            self._tell_waiting()
        for spec in starts:
            if self._ranks is None:
                host = split(self._config.cluster.endpoint)[0]
                spec = replace(spec, env={ENV_HOST: host, **spec.env})
            self._local.start(spec)

    def _rooms(self, awake: Sequence[_Joined]) -> dict[Key, str]:
        """Return the node of each process of a model file that has room."""
        cluster = self._config.cluster
        rooms = [
            Room(name=n.name, host=n.host, slots=n.slots, processes=n.orders.members) for n in awake
        ]
        if not self._expects_local:
            own = self._local.members()
            here = Room(name=_HERE, host=self._host, slots=cluster.slots, processes=own)
            rooms = [here, *rooms]
        machines = len(rooms)
        self._begun = self._begun or machines >= cluster.min_nodes
        self._lack = (
            f"no free slot: {machines} machines have {cluster.slots} workers each (--nnodes)"
        )
        if not self._begun:
            least = cluster.min_nodes
            self._lack = f"not enough machines: {machines} of at least {least} have joined"
            return {}
        return place([spec for spec, _ in self._waiting.values()], rooms)

    def _slots_of_script(self, ranks: Ranks, awake: Sequence[_Joined]) -> dict[Key, str]:
        """Return the node of each worker of a script whose slot a machine has. Servers run on the
        machine of the master."""
        specs = {key: spec for key, (spec, _) in self._waiting.items()}
        found = {
            key: _HERE
            for key, spec in specs.items()
            if spec.command is None and not self._expects_local
        }
        machines, launch = len(self._joined), self._config.launch
        assert launch is not None
        self._lack = ranks.lack(machines) or (
            f"no free slot: {machines} of at most {launch.max_nodes} machines have joined, with "
            f"{launch.per_node} workers each (--nnodes, --nproc-per-node)"
        )
        if not ranks.begun:
            return found
        for node in awake:
            # On one machine, `torch-edl scale` may ask for more workers than --nproc-per-node.
            slots = node.slots if launch.max_nodes > 1 else MOST_WORKERS
            for key, spec in specs.items():
                own = spec.command is not None and ranks.group_of(spec.slot) == node.group
                if own and ranks.local_rank_of(spec.slot) < slots:
                    found[key] = node.name
        return found

    def _number(self, ranks: Ranks) -> None:
        """Give each machine of a script its group: the lowest that is free. The group does not
        change once a worker was started there."""
        joined = list(self._joined.values())
        taken = {node.group for node in joined if node.has_begun}
        taken |= {ranks.group_of(each.slot) for each in self._unclaimed.values() if each.ran}
        for node in joined:
            if not node.has_begun:
                node.group = next(n for n in itertools.count() if n not in taken)
                taken.add(node.group)
        ranks.begin(len(joined))
        lack = ranks.lack(len(joined))
        for node in joined:
            node.orders.why = f"waiting for machines: {lack}" if lack else ""

    def _tell_waiting(self) -> None:
        for key, (spec, told) in self._waiting.items():
            if (why := self._lack) == told:
                continue
            self._waiting[key] = spec, why
            fix = f"on another machine, run torch-edl join {self._config.cluster.endpoint}"
            if self._ranks is not None:
                fix = "run the same command on another machine"
            self._events.append(
                ProcessWaits(role=spec.role, id=spec.id, why=why, fix=fix, placed=False)
            )

    def _is_awake(self, node: _Joined) -> bool:
        heard_at = node.orders.heard_at
        fresh = heard_at is None or self._clock() - heard_at < min(_AWAKE_S, self._timeout_s)
        return fresh and not node.orders.leaves

    # ---- the end ----

    def _members(self) -> list[Key]:
        with self.nodes.changed:
            found = [key for node in self._joined.values() for key in node.orders.members]
            return [*found, *self._local.members(), *self._waiting]

    def _all_told(self) -> bool:
        with self.nodes.changed:
            awake = [node for node in self._joined.values() if self._is_awake(node)]
            return all(node.orders.told_to_leave for node in awake)


def _require_same_experiment(config: JobConfig, request: pb.NodeReportRequest) -> None:
    """Raise UsageError if a node was started for another file or with other arguments."""
    if config.experiment is None or not request.HasField("experiment"):
        return
    given = {each.name: getattr(request.experiment, each.name) for each in fields(Experiment)}
    asked = Experiment(**given | {"args": tuple(given["args"])})
    config.experiment.require(asked, config.name)

"""The servers of a job: their shards of the model, and their command line. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.state.workforce.processes import PENDING, RUNNING, STARTING, Process, ServerProcess
from torch_edl.config import JobConfig
from torch_edl.wire import master_pb2 as pb

# Seconds until the first heartbeat of a server, whose machine may be busy.
_FIRST_WORD_S = 180.0
# Attributes in the stored state; the second ones are dictionaries.
_KEPT = ("made", "shards", "wanted", "moving", "_of_earlier_models")
_KEPT_BY_NUMBER = ("_copies", "_notes", "_lost")


@dataclass
class ModelStart:
    """What the current incarnation of the model starts from."""

    incarnation: int = 0
    """Incarnation of the model: 0 until the strategy is known, then from 1."""
    restored_from: str = ""
    """Checkpoint or exported model that this incarnation starts from; empty for a new model."""
    values_only: bool = False
    """True if only values are taken from :attr:`restored_from`."""


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """The arguments that all servers of a job share."""

    job: str
    module: str = "torch_edl.ps_server"
    """Module of the server, run with ``python -m``."""
    args: Sequence[str] = ()
    journals: str = ""
    """Folder of the journals; empty if the servers keep none."""

    @classmethod
    def of(cls, config: JobConfig, *, module: str, host: str, journals: str) -> ServerCommand:
        """Return the command for the servers of a job. The host of the master is empty if only this
        machine reaches it; ``journals`` is ignored unless the job keeps journals."""
        train, durability = config.train, config.durability
        args = ["--mode", train.mode, "--staleness", str(train.staleness)]
        args += ["--grads-to-wait", str(train.grads_to_wait)]
        if config.kind == "script" and host:
            # Workers of other machines reach servers where they reach the master.
            args += ["--host", host]
        args += ["--load-optimizer"] * config.checkpoint.load_optimizer
        if durability.mode == "replica":
            args.append("--replica")
        if durability.mode == "journal":
            args += ["--fsync", durability.fsync]
            args += ["--repair"] * durability.repair
        journals = journals if durability.mode == "journal" else ""
        return cls(job=config.name, module=module, args=args, journals=journals)

    def journals_of(self, model: int) -> Path | None:
        """Return the folder of the journals of a model incarnation; None without journals."""
        return Path(self.journals) / f"model-{model}" if self.journals else None

    def words(
        self,
        shard: int,
        shards: int,
        incarnation: int,
        *,
        model: ModelStart,
        successor: bool = False,
    ) -> list[str]:
        """Return the arguments of one server. For a successor, the peer of an earlier server has a
        copy of the shard."""
        words = [
            *("--job", self.job),
            *("--shard", str(shard)),
            *("--shards", str(shards)),
            *("--incarnation", str(incarnation)),
            *self.args,
        ]
        # Each incarnation of the model has its own journals: those of earlier ones are void.
        journals = self.journals_of(model.incarnation)
        if journals:
            folder = journals / f"shard-{shard}-of-{shards}"
            words += ["--journal", str(folder), "--model-incarnation", str(model.incarnation)]
        elif successor:
            words.append("--successor")
        if model.restored_from:
            words += ["--restore", model.restored_from]
            words += ["--values-only"] if model.values_only else []
        return words


class Servers:
    """The current servers, at most one for each shard.

    Each server process has its own incarnation, from one counter for all shards. The model has
    another one, see ``wire/cluster.proto``.

    Args:
        shards: number of servers.
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.wanted = shards
        """Number of servers to have once the model has moved."""
        self.moving = False
        """True if the model has to move to other servers, even if their number stays the same."""
        self.made = 0
        """Number of servers that the job ever had; the incarnation of the newest one."""
        self.loads: dict[int, pb.ServerHeartbeatRequest] = {}
        """Newest heartbeat of each shard's server, by shard."""
        self.ids_asked_at = -math.inf
        """Time at which a client last asked for the most frequent ids of tables."""
        self.slots: dict[int, Process] = {}
        """Workers and spares that are to end, by the shard of the server that starts in the pod."""
        self.start_after = 0.0
        """Time before which no server is started."""
        self._of_earlier_models = 0  # newest server of earlier model incarnations
        self._by_shard: dict[int, ServerProcess] = {}
        # Shard -> whether another server has a copy, as its server reported. With ``--durability
        # replica``, a server acknowledges nothing before its first report.
        self._copies: dict[int, bool] = {}
        self._notes: dict[int, int] = {}  # incarnation -> number of its newest report
        self._lost: dict[int, int] = {}  # shard -> number of lost updates

    def __iter__(self) -> Iterator[ServerProcess]:
        return iter(self._by_shard.values())

    def __contains__(self, process: Process) -> bool:
        return isinstance(process, ServerProcess) and self._by_shard.get(process.shard) is process

    def now(self) -> list[pb.Server]:
        """Return the servers in the order of shards; a starting one has no address."""
        servers = [self._by_shard.get(shard) for shard in range(self.shards)]
        return [pb.Server() if server is None else _known(server) for server in servers]

    def of(self, shard: int, incarnation: int) -> ServerProcess | None:
        """Return the process of a shard if its incarnation matches and it was not told to end."""
        process = self._by_shard.get(shard)
        if process is None or process.incarnation != incarnation:
            return None
        return process if process.state in (PENDING, STARTING, RUNNING) else None

    def has(self, shard: int, incarnation: int) -> bool:
        """Return whether the server still has its shard, even if it was told to end."""
        process = self._by_shard.get(shard)
        return process is not None and process.incarnation == incarnation

    def peer(self, shard: int) -> pb.Server | None:
        """Return the server that keeps a replica of this shard, that of the next; None if it does
        not listen."""
        peer = self._by_shard.get((shard + 1) % self.shards)
        if self.shards == 1 or peer is None or peer.state != RUNNING:
            return None
        return _known(peer)

    def is_superseded(self, shard: int, incarnation: int) -> bool:
        """Return whether a client that knows this server needs new addresses: a later server of the
        shard listens, or the model is of another incarnation."""
        if incarnation <= self._of_earlier_models or shard >= self.shards:
            return True
        process = self._by_shard.get(shard)
        if process is None or process.state != RUNNING:
            return False
        return process.incarnation > incarnation

    @property
    def newest(self) -> int:
        """Incarnation of the newest server that listens; 0 if none does."""
        return max((p.incarnation for p in self if p.state == RUNNING), default=0)

    def silent(self, now: float, timeout_s: float) -> list[tuple[ServerProcess, float]]:
        """Return the servers whose heartbeat timed out, each with its timeout in seconds."""
        found = []
        for process in self:
            limit = timeout_s if process.heard_at is not None else _FIRST_WORD_S
            if process.state in (STARTING, RUNNING) and now - process.last_sign >= limit:
                found.append((process, limit))
        return found

    def not_placed(self, now: float, limit_s: Callable[[int], float]) -> list[ServerProcess]:
        """Return the servers that sent no heartbeat within the limit of their shard: pending ones
        that no machine has room for, and starting ones that take over a shard. The first server of
        a shard may start slowly, since the shard has no data yet; see :meth:`silent`."""
        return [
            process
            for process in self
            if (
                (process.state == STARTING and not self.is_first(process))
                or (process.state == PENDING and process.unplaced)
            )
            and process.heard_at is None
            and now - process.started_at >= limit_s(process.shard)
        ]

    def is_first(self, process: ServerProcess) -> bool:
        """Return whether no server of the model had the shard of this one before."""
        return process.incarnation <= self._of_earlier_models + self.shards

    def starts_in(self, pod: str) -> bool:
        """Return whether a server is to start in a pod."""
        return bool(pod) and any(p.pod == pod and p.state == PENDING for p in self)

    def missing(self) -> list[int]:
        """Return the shards without a process."""
        return [shard for shard in range(self.shards) if shard not in self._by_shard]

    @property
    def moves(self) -> bool:
        """True if the model is to move to other servers."""
        return bool(self._by_shard) and (self.moving or self.wanted != self.shards)

    # ---- what happens ----

    def want(self, servers: int) -> None:
        """Set the number of servers to have; it applies at once if none was ever started."""
        self.wanted = servers
        if not self._by_shard and not self._of_earlier_models and not self.made:
            self.shards = servers

    def take(self, process: ServerProcess, shard: int) -> None:
        """Assign a free shard to a process."""
        assert shard not in self._by_shard
        self.made += 1
        process.shard, process.incarnation = shard, self.made
        self._by_shard[shard] = process

    def registered(
        self, shard: int, incarnation: int, address: str, now: float
    ) -> ServerProcess | None:
        """Record the address of a server; None if another process has the shard."""
        process = self.heard(shard, incarnation, now)
        if process is not None:
            process.address = address
            process.enter(RUNNING)
        return process

    def heard(self, shard: int, incarnation: int, now: float) -> ServerProcess | None:
        """Record a heartbeat of a server; None if another process has the shard."""
        process = self.of(shard, incarnation)
        if process is not None:
            process.heard_at = now
        return process

    def load(self, process: ServerProcess) -> pb.ServerHeartbeatRequest:
        """Return the newest heartbeat of a server; an empty one before the first."""
        found = self.loads.get(process.shard, pb.ServerHeartbeatRequest())
        return found if found.incarnation == process.incarnation else pb.ServerHeartbeatRequest()

    def note(self, process: ServerProcess, number: int, has_copy: bool) -> bool:
        """Record whether another server has a copy of a server's shard. Returns False if a newer
        report is known."""
        newest = self._notes.get(process.incarnation, 0)
        if number > newest:
            self._notes[process.incarnation] = number
            self._copies[process.shard] = has_copy
        return number >= newest

    def is_kept(self, process: ServerProcess) -> bool:
        """Return whether the peer of a server has a copy of its shard, and is not about to end."""
        peer = self._by_shard.get((process.shard + 1) % self.shards) if process in self else None
        if peer is None or peer.state != RUNNING or peer.released:
            return False
        return peer is not process and peer.incarnation == process.keeper

    def is_expendable(self, process: ServerProcess) -> bool:
        """Return whether nothing is lost if this process ends now."""
        if process not in self or process.released:
            return True
        owns = process.state not in (PENDING, STARTING) and process.shard in self._copies
        if owns and not (self.has_copy(process.shard) and self.is_kept(process)):
            return False
        # The process may have the only copy of the previous shard.
        before = (process.shard - 1) % self.shards
        server = self._by_shard.get(before)
        alive = server is not None and server.state == RUNNING and not server.released
        return alive or not self.has_copy(before)

    def neighbours(self, shard: int) -> list[int]:
        """Return the ids of the servers that keep a copy of the shard or whose copy the server of
        the shard keeps: of the next and the previous shard."""
        near = {(shard - 1) % self.shards, (shard + 1) % self.shards} - {shard}
        return [self._by_shard[each].id for each in sorted(near) if each in self._by_shard]

    def has_copy(self, shard: int) -> bool:
        """Return whether a successor is to look for a copy of the shard on its peer."""
        return self._copies.get(shard, False)

    def is_alone(self, shard: int) -> bool:
        """Return whether the loss of the shard's server loses what it acknowledged."""
        return not self._copies.get(shard, True)

    def lacks(self, shard: int, updates: int) -> int:
        """Record the total of updates that a shard lost. Returns the increase."""
        new = max(0, updates - self._lost.get(shard, 0))
        if new:
            self._lost[shard] = updates
        return new

    def vacate(self, process: ServerProcess) -> None:
        """Free the shard of a server that is gone."""
        assert process in self
        del self._by_shard[process.shard]
        self._notes.pop(process.incarnation, None)

    def renew(self) -> list[ServerProcess]:
        """Remove all servers, for a new incarnation of the model. Returns the removed ones."""
        gone = list(self)
        self._copies.clear()
        self._notes.clear()
        self._lost.clear()
        self._by_shard.clear()
        self.slots.clear()
        self._of_earlier_models = self.made
        self.shards, self.moving = self.wanted, False
        return gone

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _KEPT},
            # JSON has no numbers as keys.
            **{name: sorted(getattr(self, name).items()) for name in _KEPT_BY_NUMBER},
            "ids": [process.id for process in self],
        }

    def from_state(self, state: Mapping[str, Any], processes: Sequence[Process]) -> None:
        """Restore what :meth:`to_state` returned, with the servers that still run."""
        for name in _KEPT:
            setattr(self, name, state[name])
        for name in _KEPT_BY_NUMBER:
            setattr(self, name, dict(map(tuple, state[name])))
        self._by_shard = {
            p.shard: p for p in processes if isinstance(p, ServerProcess) and p.id in state["ids"]
        }


def _known(server: ServerProcess) -> pb.Server:
    return pb.Server(
        address=server.address if server.state == RUNNING else "",
        incarnation=server.incarnation,
        data_plane=server.data_plane,
    )

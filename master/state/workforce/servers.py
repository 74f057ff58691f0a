"""Which process serves which shard of the model. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from master.state.workforce.processes import PENDING, RUNNING, STARTING, Process
from torch_edl.wire import master_pb2 as pb

# A server that says nothing at all since its process was started, on a busy machine.
_FIRST_WORD_S = 180.0


class Servers:
    """The servers of today, at most one for each shard.

    Each server process has an incarnation of its own, from one counter for all shards. The model
    has another one, see ``wire/cluster.proto``.

    Args:
        shards: how many servers there should be.
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.wanted = shards
        """How many there are to be, once the model has moved."""
        self.moving = False
        """The model is to move to other servers, even if their number stays: a move has begun."""
        self.made = 0
        """Servers that the job ever had: the incarnation of the newest one."""
        self._of_earlier_models = 0  # the newest server of any earlier incarnation of the model
        self._by_shard: dict[int, Process] = {}
        # Shard -> whether another server has a copy, as its server had noted; before, nothing is
        # acknowledged with ``--durability replica``.
        self._copies: dict[int, bool] = {}
        self._notes: dict[int, int] = {}  # incarnation -> number of its newest note
        self._lost: dict[int, int] = {}  # shard -> updates that it lacks

    def __iter__(self) -> Iterator[Process]:
        return iter(self._by_shard.values())

    def __contains__(self, process: Process) -> bool:
        return self._by_shard.get(process.shard) is process

    def now(self) -> list[pb.Server]:
        """The servers in the order of shards; one that starts has no address."""
        servers = [self._by_shard.get(shard) for shard in range(self.shards)]
        return [pb.Server() if server is None else _known(server) for server in servers]

    def of(self, shard: int, incarnation: int) -> Process | None:
        """The process that has the shard, unless that is of another incarnation."""
        process = self._by_shard.get(shard)
        if process is None or process.incarnation != incarnation:
            return None
        return process if process.state in (PENDING, STARTING, RUNNING) else None

    def has(self, shard: int, incarnation: int) -> bool:
        """Whether no other server has the shard, though this one may be told to end."""
        process = self._by_shard.get(shard)
        return process is not None and process.incarnation == incarnation

    def peer(self, shard: int) -> pb.Server | None:
        """The server of the next shard, which keeps a replica of this one; None: none listens."""
        peer = self._by_shard.get((shard + 1) % self.shards)
        if self.shards == 1 or peer is None or peer.state != RUNNING:
            return None
        return _known(peer)

    def is_superseded(self, shard: int, incarnation: int) -> bool:
        """Whether a caller that knows this server of a shard is to learn of others: a later one
        listens, or the model is of another incarnation."""
        if incarnation <= self._of_earlier_models or shard >= self.shards:
            return True
        process = self._by_shard.get(shard)
        if process is None or process.state != RUNNING:
            return False
        return process.incarnation > incarnation

    @property
    def newest(self) -> int:
        """Incarnation of the newest server that listens; 0: none does."""
        return max((p.incarnation for p in self if p.state == RUNNING), default=0)

    def silent(self, now: float, timeout_s: float) -> list[tuple[Process, float]]:
        """Servers that have said nothing for too long, each with the time in seconds."""
        found = []
        for process in self:
            limit = timeout_s if process.heard_at is not None else _FIRST_WORD_S
            last = process.started_at if process.heard_at is None else process.heard_at
            if process.state in (STARTING, RUNNING) and now - last >= limit:
                found.append((process, limit))
        return found

    def not_placed(self, now: float, limit_s: Callable[[int], float]) -> list[Process]:
        """Servers that nobody has heard for so long, by their shard, since they were to start, but
        for those that a machine has room for."""
        return [
            process
            for process in self
            if (process.state == STARTING or (process.state == PENDING and process.unplaced))
            and process.heard_at is None
            and now - process.started_at >= limit_s(process.shard)
        ]

    def missing(self) -> list[int]:
        """Shards that no process has."""
        return [shard for shard in range(self.shards) if shard not in self._by_shard]

    @property
    def moves(self) -> bool:
        """The model is to move to other servers."""
        return bool(self._by_shard) and (self.moving or self.wanted != self.shards)

    # ---- what happens ----

    def want(self, servers: int) -> None:
        """There are to be so many servers; at once, if none was started."""
        self.wanted = servers
        if not self._by_shard and not self._of_earlier_models and not self.made:
            self.shards = servers

    def take(self, process: Process, shard: int) -> None:
        """A process is to serve a shard that no process has."""
        assert shard not in self._by_shard
        self.made += 1
        process.shard, process.incarnation = shard, self.made
        self._by_shard[shard] = process

    def registered(self, shard: int, incarnation: int, address: str, now: float) -> Process | None:
        """A server listens; None if another process has the shard."""
        process = self.heard(shard, incarnation, now)
        if process is not None:
            process.state, process.address = RUNNING, address
        return process

    def heard(self, shard: int, incarnation: int, now: float) -> Process | None:
        """A server lives; None if another process has the shard."""
        process = self.of(shard, incarnation)
        if process is not None:
            process.heard_at = now
        return process

    def note(self, process: Process, number: int, has_copy: bool) -> bool:
        """A server says whether another one has a copy of its shard, or it goes on alone. Returns
        whether that is known now: False if it has said something newer before."""
        newest = self._notes.get(process.incarnation, 0)
        if number > newest:
            self._notes[process.incarnation] = number
            self._copies[process.shard] = has_copy
        return number >= newest

    def is_kept(self, process: Process) -> bool:
        """Whether the peer of a server has a copy of its shard now, and stays."""
        peer = self._by_shard.get((process.shard + 1) % self.shards) if process in self else None
        if peer is None or peer.state != RUNNING or peer.released:
            return False
        return peer is not process and peer.incarnation == process.keeper

    def is_expendable(self, process: Process) -> bool:
        """Whether copies on other servers would make up for the loss of a process now."""
        if process not in self or process.released:
            return True
        owns = process.state not in (PENDING, STARTING) and process.shard in self._copies
        if owns and not (self.has_copy(process.shard) and self.is_kept(process)):
            return False
        # It may have the only copy of the shard before its own.
        before = (process.shard - 1) % self.shards
        server = self._by_shard.get(before)
        alive = server is not None and server.state == RUNNING and not server.released
        return alive or not self.has_copy(before)

    def has_copy(self, shard: int) -> bool:
        """Whether a successor is to look for a copy of the shard: an earlier server had one."""
        return self._copies.get(shard, False)

    def is_alone(self, shard: int) -> bool:
        """Whether all that its server has acknowledged is lost with it."""
        return not self._copies.get(shard, True)

    def lacks(self, shard: int, updates: int) -> int:
        """A server lacks so many updates of its shard in all; returns how many of them are news."""
        new = max(0, updates - self._lost.get(shard, 0))
        if new:
            self._lost[shard] = updates
        return new

    def vacate(self, process: Process) -> None:
        """A server is gone, and its shard is to have another."""
        assert process in self
        del self._by_shard[process.shard]
        self._notes.pop(process.incarnation, None)

    def renew(self) -> list[Process]:
        """The model is of another incarnation: all servers are to be replaced. Returns them."""
        gone = list(self)
        self._copies.clear()
        self._notes.clear()
        self._lost.clear()
        self._by_shard.clear()
        self._of_earlier_models = self.made
        self.shards, self.moving = self.wanted, False
        return gone

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it."""
        return {
            "made": self.made,
            "shards": self.shards,
            "wanted": self.wanted,
            "moving": self.moving,
            "of_earlier_models": self._of_earlier_models,
            "copies": sorted(self._copies.items()),
            "notes": sorted(self._notes.items()),
            "lost": sorted(self._lost.items()),
            "ids": [process.id for process in self],
        }

    def from_state(self, state: Mapping[str, Any], processes: Sequence[Process]) -> None:
        """The inverse of :meth:`to_state`.

        Args:
            processes: the servers that still run.
        """
        self.made, self._of_earlier_models = state["made"], state["of_earlier_models"]
        self.shards, self.wanted = state["shards"], state["wanted"]
        self.moving = state["moving"]
        self._by_shard = {p.shard: p for p in processes if p.id in state["ids"]}
        self._copies = dict(map(tuple, state["copies"]))
        self._notes = dict(map(tuple, state["notes"]))
        self._lost = dict(map(tuple, state["lost"]))


def _known(server: Process) -> pb.Server:
    """As others are told of it."""
    return pb.Server(
        address=server.address if server.state == RUNNING else "",
        incarnation=server.incarnation,
        data_plane=server.data_plane,
    )

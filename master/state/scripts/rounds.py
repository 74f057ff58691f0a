"""The rendezvous of torchrun's agents (``--rdzv-backend=edl``): rounds of nodes with ranks. Pure.

A round ends when a node joins or leaves. A round leaves no keys behind that could disturb the next
round, and a node that dies before it asks for its rank does not delay the other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_edl.wire import master_pb2 as pb

# Seconds of silence after which a waiting node, or a node whose round is over, is ignored.
SILENT_S = 5.0
# The same for a round with the largest number of nodes. The limit is above any monitor interval of
# the agents, so a node that is only slow keeps its place.
FULL_SILENT_S = 30.0
# Seconds of silence after which a node of a round is lost. Nodes report twice a second.
LOST_S = 10.0


@dataclass(frozen=True)
class _Waiting:
    store: str
    seen: float


class Rounds:
    """The newest round, and the nodes that wait for the next one."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the newest round; 0 before the first."""
        self.closed = False
        """True once the job is over; no node may join."""
        self._members: dict[str, str] = {}  # node -> its store, in the order of ranks
        self._seen: dict[str, float] = {}  # members that have not left -> last heard
        self._waiting: dict[str, _Waiting] = {}  # in the order of arrival
        self._last_arrival = 0.0
        self.left = False
        """True once every node that took part has left."""
        self._limits = (1, 1)
        self._last_call_s = 0.0

    def ask(self, wish: pb.JoinRoundRequest, now: float) -> pb.JoinRoundResponse | None:
        """Request a place in the next round for a node; None while the round is not formed. A node
        makes a new store for each request: the same store means that the request is repeated."""
        node = wish.node
        if self.closed:
            self._waiting.pop(node, None)
            return pb.JoinRoundResponse(closed=True)
        self.left = False
        if self._members.get(node) == wish.store:
            # The answer was lost, or the node repeats its request.
            if node in self._seen:
                self._seen[node] = now
            return self._place(node)
        self._limits = (wish.min_nodes, max(wish.min_nodes, wish.max_nodes))
        self._last_call_s = wish.last_call_s
        if node not in self._waiting:
            self._last_arrival = now
        self._waiting[node] = _Waiting(wish.store, now)
        if self.form(now) and node in self._members:
            return self._place(node)
        return None

    def look(self, node: str, round: int, now: float) -> pb.GetRoundResponse:
        if node in self._seen and round == self.number:
            self._seen[node] = now
        return pb.GetRoundResponse(
            closed=self.closed,
            over=round != self.number or self._is_short(now),
            waiting=self._waited_for(now),
        )

    def leave(self, node: str) -> None:
        """Remove a node that gives up or is shut down."""
        known = node in self._waiting or node in self._seen
        self._waiting.pop(node, None)
        self._seen.pop(node, None)
        if known and not (self._waiting or self._seen):
            self.left = True

    def __contains__(self, node: str) -> bool:
        return node in self._members

    def deserted(self, now: float) -> bool:
        """Return whether no node waits, and all nodes of the current round are gone."""
        # After the end of the job, a slow node has no work to resume.
        limit = LOST_S if self.closed else FULL_SILENT_S
        heard = any(now - seen < limit for seen in self._seen.values())
        return not heard and not self._present(now)

    def form(self, now: float) -> bool:
        """Form the next round if its nodes are there. Returns whether it was formed."""
        for node in [n for n, w in self._waiting.items() if now - w.seen >= SILENT_S]:
            del self._waiting[node]
        least, most = self._limits
        if self.closed or len(self._waiting) < least or self._held_up(now):
            return False
        if len(self._waiting) < most and now - self._last_arrival < self._last_call_s:
            return False
        self.number += 1
        chosen = list(self._waiting)[:most]
        self._members = {node: self._waiting.pop(node).store for node in chosen}
        self._seen = dict.fromkeys(chosen, now)
        return True

    def _waited_for(self, now: float) -> int:
        """Return the number of nodes for which the round has to end: its own that ask again, and
        others for which there is room."""
        present = self._present(now)
        again = sum(node in self._members for node in present)
        staying = [n for n, seen in self._seen.items() if now - seen < FULL_SILENT_S]
        room = self._limits[1] - len(set(staying) - present.keys()) - again
        return again + max(0, min(len(present) - again, room))

    def _held_up(self, now: float) -> bool:
        """Return whether a living node of the current round has not asked again yet."""
        full = len(self._seen) >= self._limits[1] and not self._waiting.keys() & self._seen.keys()
        limit = FULL_SILENT_S if full else SILENT_S
        return any(
            now - seen < limit for node, seen in self._seen.items() if node not in self._waiting
        )

    def _is_short(self, now: float) -> bool:
        """Return whether a node of the round has left, or is lost."""
        return any(now - self._seen.get(node, -LOST_S) >= LOST_S for node in self._members)

    def _present(self, now: float) -> dict[str, _Waiting]:
        return {node: w for node, w in self._waiting.items() if now - w.seen < SILENT_S}

    def _place(self, node: str) -> pb.JoinRoundResponse:
        nodes = list(self._members)
        place = pb.Place(
            round=self.number,
            rank=nodes.index(node),
            nodes=len(nodes),
            store=self._members[nodes[0]],
        )
        return pb.JoinRoundResponse(place=place)

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "members": list(self._members.items()),
            "living": list(self._seen),
            "limits": list(self._limits),
            "closed": self.closed,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.number = state["number"]
        self._members = dict(state["members"])
        self._seen = dict.fromkeys(state["living"], now)
        self._limits = (state["limits"][0], state["limits"][1])
        self.closed = state["closed"]

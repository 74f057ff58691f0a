"""Where torchrun's agents meet (``--rdzv-backend=edl``): rounds of nodes with ranks. Pure.

A round is over when a node joins or leaves. Unlike a key in a store, nothing of a round is left
behind for the next one, and a node that dies before it asks for its rank holds nobody up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_edl.wire import master_pb2 as pb

# A node asks all the time while it waits, and for the state of its round while that runs.
SILENT_S = 5.0
# A round that has all the nodes it may have goes on: only a silence that no setting of the agents'
# monitor interval explains makes room for those that wait.
FULL_SILENT_S = 30.0
# A node of a round tells of itself twice a second whatever its agent is at: this long means lost.
LOST_S = 10.0


@dataclass(frozen=True)
class _Waiting:
    store: str
    seen: float


class Rounds:
    """The newest round and who waits for the next one."""

    def __init__(self) -> None:
        self.number = 0
        self.closed = False
        """The job is over: nobody may join any more."""
        self._members: dict[str, str] = {}  # node -> its store, in the order of ranks
        self._seen: dict[str, float] = {}  # members that were not known to leave -> last heard
        self._waiting: dict[str, _Waiting] = {}  # in the order of arrival
        self._last_arrival = 0.0
        self.left = False
        """There were nodes, and all of them said that they leave."""
        self._limits = (1, 1)
        self._last_call_s = 0.0

    def ask(self, wish: pb.JoinRoundRequest, now: float) -> pb.JoinRoundResponse | None:
        """A node wants to be in a round; None while the round is not formed.

        Its store was made for this wish; the same one again is the same wish.
        """
        node = wish.node
        if self.closed:
            self._waiting.pop(node, None)
            return pb.JoinRoundResponse(closed=True)
        self.left = False
        if self._members.get(node) == wish.store:
            # Its answer was lost, or it asks once more.
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
        """A node asks how its round stands."""
        if node in self._seen and round == self.number:
            self._seen[node] = now
        return pb.GetRoundResponse(
            closed=self.closed,
            over=round != self.number or self._is_short(now),
            waiting=self._waited_for(now),
        )

    def leave(self, node: str) -> None:
        """A node gives up or is shut down."""
        known = node in self._waiting or node in self._seen
        self._waiting.pop(node, None)
        self._seen.pop(node, None)
        if known and not (self._waiting or self._seen):
            self.left = True

    def __contains__(self, node: str) -> bool:
        return node in self._members

    def deserted(self, now: float) -> bool:
        """No node waits, and none of the round that runs is there any more."""
        # Once the job is over there is nothing that a node which was only slow could go on with.
        limit = LOST_S if self.closed else FULL_SILENT_S
        heard = any(now - seen < limit for seen in self._seen.values())
        return not heard and not self._present(now)

    def form(self, now: float) -> bool:
        """Makes the next round if it is time."""
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
        """Nodes for which the round is to end: those of it that ask again, and room for others."""
        present = self._present(now)
        again = sum(node in self._members for node in present)
        staying = [n for n, seen in self._seen.items() if now - seen < FULL_SILENT_S]
        room = self._limits[1] - len(set(staying) - present.keys()) - again
        return again + max(0, min(len(present) - again, room))

    def _held_up(self, now: float) -> bool:
        """A living node of the round that runs has not asked again yet."""
        full = len(self._seen) >= self._limits[1] and not self._waiting.keys() & self._seen.keys()
        limit = FULL_SILENT_S if full else SILENT_S
        return any(
            now - seen < limit for node, seen in self._seen.items() if node not in self._waiting
        )

    def _is_short(self, now: float) -> bool:
        """A node of the round left it, or is lost."""
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
        """What a restarted master needs, as JSON can say it; nodes that wait ask again."""
        return {
            "number": self.number,
            "members": list(self._members.items()),
            "living": list(self._seen),
            "limits": list(self._limits),
            "closed": self.closed,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """The inverse of :meth:`to_state`; every node counts as heard now."""
        self.number = state["number"]
        self._members = dict(state["members"])
        self._seen = dict.fromkeys(state["living"], now)
        self._limits = (state["limits"][0], state["limits"][1])
        self.closed = state["closed"]

"""Synchronization of the scripts of a job on servers: loops over loaders, and values that they
compute together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from master.state.membership import Membership
from torch_edl.wire import master_pb2 as pb

Position = tuple[int, int]
"""Position of a script: the number of its loop over a loader, and of the meeting within it."""


@dataclass(frozen=True)
class _Group:
    """The workers that compute a value together, in the order of ranks."""

    round: int
    workers: list[int]
    parts: dict[int, bytes] = field(default_factory=dict)


class Meetings:
    """The meetings of a job.

    A script at a meeting waits for the scripts in the same loop over a loader. It does not wait for
    a script in an earlier loop, which joined late, nor for one in a later loop or at its end.
    """

    def __init__(self, members: Membership) -> None:
        self.begun = 0
        """Number of the newest loop over a loader that has begun."""
        self.epochs: dict[int, int] = {}
        """Epochs of the data up to the end of each loop, by its number."""
        self._members = members
        self._positions: dict[int, Position] = {}
        self._results: dict[Position, str] = {}
        self._groups: dict[Position, _Group] = {}
        self._earlier: dict[int, dict[Position, str]] = {}  # results by number of the training
        self._rounds = 0  # numbers groups, also across restarts of the master

    def begin_pass(self, worker: int, number: int, epochs: int) -> bool:
        """Return whether the worker may begin the loop of that number."""
        self._positions[worker] = number, 0
        self.epochs[number] = epochs
        if number > self.begun and not self._any_at((number - 1, 0), (number, 0)):
            self.begun = number
        return number <= self.begun

    def meet(self, request: pb.MeetRequest, *, over: bool) -> pb.MeetResponse | None:
        """Return what the worker is to do next; None while it waits for others. After records of a
        later loop are done (``over``), nothing new is computed."""
        worker, position = request.worker_id, (request.passes, request.number)
        self._positions[worker] = position
        if position not in self._results and position not in self._groups and over:
            return pb.MeetResponse(result="null")
        if position not in self._results:
            answer = self._work(request, worker, position)
            if position not in self._results:
                return answer
        return pb.MeetResponse(result=self._results[position])

    def _work(
        self, request: pb.MeetRequest, worker: int, position: Position
    ) -> pb.MeetResponse | None:
        group = self._group(position)
        if group is None or worker not in group.workers:
            return None
        rank, world = group.workers.index(worker), len(group.workers)
        if request.round == group.round and request.HasField("result"):
            self._results[position] = request.result
            del self._groups[position]
            return None
        if request.round == group.round and request.HasField("part"):
            group.parts[rank] = request.part
        if rank not in group.parts:
            part = pb.MeetingPart(round=group.round, rank=rank, world=world)
            return pb.MeetResponse(part=part)
        if rank or len(group.parts) < world:
            return None
        return pb.MeetResponse(parts=pb.MeetingParts(parts=[group.parts[i] for i in range(world)]))

    def _group(self, position: Position) -> _Group | None:
        """Return the workers at a position, grouped anew if one was lost; None before all came."""
        group = self._groups.get(position)
        if group is None or not all(map(self._present, group.workers)):
            self._groups.pop(position, None)
            if self._any_at((position[0], 0), position):
                return None
            workers = sorted(w for w, at in self._positions.items() if at == position)
            self._rounds += 1
            group = _Group(self._rounds, [w for w in workers if self._present(w)])
            self._groups[position] = group
        return group

    def _any_at(self, first: Position, before: Position) -> bool:
        """Return whether a worker is at a position in ``[first, before)``."""
        return any(first <= at < before and self._present(w) for w, at in self._positions.items())

    def _present(self, worker: int) -> bool:
        member = self._members.get(worker)
        return member is not None and not member.draining

    def begin_training(self, number: int, before: int) -> None:
        """Begin training ``number``. No worker is left in training ``before``, whose values are
        kept for processes that run the script from its beginning."""
        self._earlier[before] = dict(self._results)
        self._earlier = {each: kept for each, kept in self._earlier.items() if each < number}
        self.begun = 0
        for kept in (self.epochs, self._positions, self._results, self._groups):
            kept.clear()

    def results_of(self, training: int) -> list[pb.MeetingResult]:
        """Return the values of an earlier training."""
        return [
            pb.MeetingResult(passes=passes, number=number, value=value)
            for (passes, number), value in self._earlier.get(training, {}).items()
        ]

    def void(self) -> None:
        """Discard partial values: the model was replaced."""
        self._groups.clear()

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {
            "begun": self.begun,
            "epochs": list(self.epochs.items()),
            "positions": list(self._positions.items()),
            "results": list(self._results.items()),
            "earlier": [[n, list(kept.items())] for n, kept in self._earlier.items()],
            "rounds": self._rounds,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.begun, self._rounds = state["begun"], state["rounds"]
        self.epochs = dict(map(tuple, state["epochs"]))
        self._positions = {worker: (at[0], at[1]) for worker, at in state["positions"]}
        self._results = {(at[0], at[1]): result for at, result in state["results"]}
        self._earlier = {
            number: {(at[0], at[1]): result for at, result in kept}
            for number, kept in state["earlier"]
        }

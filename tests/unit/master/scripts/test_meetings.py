"""Scripts on servers wait for each other at loops and where they compute together."""

from __future__ import annotations

import json

import pytest

from master.state.membership import Membership
from master.state.scripts.meetings import Meetings
from torch_edl.wire import master_pb2 as pb


class World:
    """Scripts that compute the sum of their parts, each of which is 1 / world."""

    def __init__(self, workers: int) -> None:
        self.members = Membership(heartbeat_timeout_s=30)
        for worker in range(workers):
            self.members.register(worker, worker + 1, 0.0)
        self.meetings = Meetings(self.members)
        self.asked: dict[int, pb.MeetRequest] = {}

    def begin(self, worker: int, number: int) -> bool:
        return self.meetings.begin_pass(worker, number, number)

    def meet(self, worker: int, passes: int, number: int = 1, *, over: bool = False) -> str | None:
        """Asks again until there is nothing to do; the result, if there is one."""
        request = pb.MeetRequest(worker_id=worker, passes=passes, number=number)
        last = self.asked.get(worker)
        if last is not None and (last.passes, last.number) == (passes, number):
            request = last
        self.asked[worker] = request
        while (answer := self.meetings.meet(request, over=over)) is not None:
            match answer.WhichOneof("answer"):
                case "result":
                    return answer.result
                case "part":
                    request.round = answer.part.round
                    request.part = f"{answer.part.rank}/{answer.part.world}".encode()
                case "parts":
                    request.result = json.dumps([part.decode() for part in answer.parts.parts])
                    request.ClearField("part")
        return None


TWO = '["0/2", "1/2"]'


def test_each_computes_a_part_and_all_get_one_result() -> None:
    w = World(2)
    assert w.begin(0, 1)
    assert w.begin(1, 1)
    assert w.meet(0, 1) is None  # the other one trains
    assert w.meet(1, 1) is None
    assert w.meet(0, 1) == TWO
    assert w.meet(1, 1) == TWO
    assert w.meet(1, 1, number=2) is None
    assert w.meet(0, 1, number=2) is None


def test_nothing_is_trained_while_one_evaluates() -> None:
    w = World(2)
    assert w.begin(0, 1)
    assert w.begin(1, 1)
    assert not w.begin(0, 2)
    assert w.begin(1, 2)
    assert w.begin(0, 2)


def test_one_that_does_not_come_is_not_waited_for() -> None:
    """It evaluates on rank 0 only; the other one is in the next loop, or asked to leave."""
    w = World(3)
    assert all(w.begin(worker, 1) for worker in range(3))
    assert w.meet(0, 1) is None
    assert not w.begin(1, 2)
    w.members.get(2).draining = True
    assert w.meet(0, 1) == '["0/1"]'
    assert not w.begin(1, 2)
    assert w.begin(0, 2)


def test_one_that_joins_late_delays_nobody_and_gets_the_results() -> None:
    w = World(2)
    assert w.begin(0, 1)
    assert w.meet(0, 1) == '["0/1"]'
    assert w.begin(0, 2)
    assert w.begin(1, 1)
    assert w.meet(0, 2) == '["0/1"]'
    assert w.meet(1, 1) == '["0/1"]'
    assert w.begin(1, 2)
    assert w.meet(1, 2) == '["0/1"]'


def test_a_worker_is_lost_and_the_others_compute_all_of_it() -> None:
    w = World(3)
    assert all(w.begin(worker, 1) for worker in range(3))
    assert w.meet(2, 1) is None
    assert w.meet(1, 1) is None
    w.meetings.meet(pb.MeetRequest(worker_id=0, passes=1, number=1), over=False)
    assert w.meet(1, 1) is None
    w.members.remove(0)
    assert w.meet(1, 1) is None
    assert w.meet(2, 1) is None
    assert w.meet(1, 1) == TWO
    assert w.meet(2, 1) == TWO


@pytest.mark.parametrize("restarted", [False, True])
def test_a_part_of_a_model_that_is_gone_does_not_count(restarted: bool) -> None:
    """Or of a group that an earlier master had made."""
    w = World(2)
    assert w.begin(0, 1)
    assert w.begin(1, 1)
    assert w.meet(0, 1) is None
    assert w.meet(1, 1) is None
    if restarted:
        state = json.loads(json.dumps(w.meetings.to_state()))
        w.meetings = Meetings(w.members)
        w.meetings.from_state(state, 0.0)
    else:
        w.meetings.void()
    stale = w.asked[0].round
    assert w.meet(0, 1) is None
    assert w.asked[0].round > stale
    assert w.meet(1, 1) is None
    assert w.meet(0, 1) == TWO
    state = json.loads(json.dumps(w.meetings.to_state()))
    w.meetings = Meetings(w.members)
    w.meetings.from_state(state, 0.0)
    assert w.meet(1, 1) == TWO
    assert w.meetings.epochs == {1: 1}


def test_what_lies_behind_the_training_is_not_computed_on_a_later_model() -> None:
    w = World(1)
    assert w.begin(0, 1)
    assert w.meet(0, 1, over=True) == "null"
    assert w.begin(0, 2)
    assert w.meet(0, 2) == '["0/1"]'
    assert w.meet(0, 2, over=True) == '["0/1"]'

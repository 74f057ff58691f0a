"""Scripts on servers wait for each other at loops and where they compute together."""

from __future__ import annotations

import json

import pytest

from master.state.calls import script_calls
from tests.unit.master.script_jobs import script
from torch_edl.wire import master_pb2 as pb

TWO = '["0/2", "1/2"]'


class Scripts:
    """Scripts that compute the list of their parts, each of which is its rank and the number."""

    def __init__(self, workers: int) -> None:
        self.w = script(strategy="ps", workers=workers)
        for rank in range(workers):
            self.w.register(rank + 1, local_rank=rank)
        self.asked: dict[int, pb.MeetRequest] = {}

    def begin(self, number: int, *workers: int) -> list[bool]:
        answers = []
        for worker in workers:
            request = pb.BeginPassRequest(worker_id=worker, number=number, epochs=number)
            answer = self.w.call(script_calls.begin_pass, request)
            answers.append(answer is not None and answer.begun)
        return answers

    def meet(self, worker: int, passes: int, number: int = 1) -> str | None:
        """Ask again until there is nothing to do. Returns the result; None without one."""
        request = pb.MeetRequest(worker_id=worker, passes=passes, number=number)
        last = self.asked.get(worker)
        if last is not None and (last.passes, last.number) == (passes, number):
            request = last
        self.asked[worker] = request
        while (answer := self.w.call(script_calls.meet, request)) is not None:
            match answer.WhichOneof("answer"):
                case "result":
                    return answer.result
                case "part":
                    request.round = answer.part.round
                    request.part = f"{answer.part.rank}/{answer.part.world}".encode()
                case "parts":
                    request.result = json.dumps([part.decode() for part in answer.parts.parts])
                    request.ClearField("part")
                case _:
                    return None
        return None


def test_each_computes_a_part_and_all_get_one_result() -> None:
    s = Scripts(2)
    assert s.begin(1, 0, 1) == [True, True]
    assert s.meet(0, 1) is None  # the other one trains
    assert s.meet(1, 1) is None
    assert [s.meet(0, 1), s.meet(1, 1)] == [TWO, TWO]
    assert [s.meet(1, 1, number=2), s.meet(0, 1, number=2)] == [None, None]


def test_nothing_is_trained_while_one_evaluates() -> None:
    s = Scripts(2)
    assert s.begin(1, 0, 1) == [True, True]
    assert s.begin(2, 0, 1, 0) == [False, True, True]
    s.w.job.stop("enough", s.w.now)
    assert s.begin(3, 0, 1) == [False, False]


def test_one_that_does_not_come_is_not_waited_for() -> None:
    """It evaluates on rank 0 only; the other one is in the next loop, or asked to leave."""
    s = Scripts(3)
    assert s.begin(1, 0, 1, 2) == [True] * 3
    assert s.meet(0, 1) is None
    assert s.begin(2, 1) == [False]
    s.w.job.members.get(2).draining = True
    assert s.meet(0, 1) == '["0/1"]'
    assert s.begin(2, 1, 0) == [False, True]


def test_one_that_joins_late_delays_nobody_and_gets_the_results() -> None:
    s = Scripts(2)
    assert s.begin(1, 0) == [True]
    assert s.meet(0, 1) == '["0/1"]'
    assert s.begin(2, 0) == [True]
    assert s.begin(1, 1) == [True]
    assert s.meet(0, 2) == '["0/1"]'
    assert s.meet(1, 1) == '["0/1"]'
    assert s.begin(2, 1) == [True]
    assert s.meet(1, 2) == '["0/1"]'


def test_a_worker_is_lost_and_the_others_compute_all_of_it() -> None:
    s = Scripts(3)
    assert s.begin(1, 0, 1, 2) == [True] * 3
    assert [s.meet(2, 1), s.meet(1, 1)] == [None, None]
    s.w.call(script_calls.meet, pb.MeetRequest(worker_id=0, passes=1, number=1))
    assert s.meet(1, 1) is None
    s.w.leave(0)
    assert [s.meet(1, 1), s.meet(2, 1)] == [None, None]
    assert [s.meet(1, 1), s.meet(2, 1)] == [TWO, TWO]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_part_of_a_model_that_is_gone_does_not_count(restarted: bool) -> None:
    """Or of a group that an earlier master had made."""
    s = Scripts(2)
    assert s.begin(1, 0, 1) == [True, True]
    assert [s.meet(0, 1), s.meet(1, 1)] == [None, None]
    if restarted:
        s.w = s.w.restart()
    else:
        s.w.job.meetings.void()
    stale = s.asked[0].round
    assert s.meet(0, 1) is None
    assert s.asked[0].round > stale
    assert s.meet(1, 1) is None
    assert s.meet(0, 1) == TWO
    s.w = s.w.restart()
    assert s.meet(1, 1) == TWO
    assert s.w.job.meetings.epochs == {1: 1}


def test_what_lies_behind_the_training_is_not_computed_on_a_later_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = Scripts(1)
    assert s.begin(1, 0) == [True]
    monkeypatch.setattr(script_calls, "is_beyond", lambda tasks, epochs: True)
    assert s.meet(0, 1) == "null"
    monkeypatch.undo()
    assert s.begin(2, 0) == [True]
    assert s.meet(0, 2) == '["0/1"]'
    monkeypatch.setattr(script_calls, "is_beyond", lambda tasks, epochs: True)
    assert s.meet(0, 2) == '["0/1"]'

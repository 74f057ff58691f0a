"""Who may change the model, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.waiting import HANG_S
from torch_edl.errors import StaleIncarnationError
from torch_edl.ps_server.push_barrier import HoldEndedError, PushBarrier
from torch_edl.tables.watermarks import Watermarks


class Push(threading.Thread):
    """A push that stays inside until it is let go."""

    def __init__(self, gate: PushBarrier, task_id: int, last: int) -> None:
        super().__init__()
        self.inside, self.go, self.error = threading.Event(), threading.Event(), None
        self._gate, self._range = gate, (task_id, last)
        self.start()

    def run(self) -> None:
        try:
            with self._gate.passing(*self._range):
                self.inside.set()
                assert self.go.wait(HANG_S)
        except StaleIncarnationError as error:
            self.error = error

    def finish(self) -> None:
        self.go.set()
        self.join(HANG_S)
        assert not self.is_alive()


@pytest.fixture
def gate() -> PushBarrier:
    return PushBarrier()


def move(gate: PushBarrier, number: int) -> None:
    """The model moves to other servers."""
    gate.hold(10, move=number)
    with gate.cut(Watermarks(), lambda: True, move=number):
        pass


def cut_after_a_push(gate: PushBarrier, number: int) -> None:
    """The cut of a move that names a push which waits."""
    push = Push(gate, 7, 64)
    push.go.set()
    with gate.cut(Watermarks(0, {7: 64}), push.inside.is_set, move=number):
        pass
    push.finish()
    assert push.error is None


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_pushes_pass_side_by_side(gate: PushBarrier) -> None:
    pushes = [Push(gate, 0, 1), Push(gate, 1, 1)]
    assert all(p.inside.wait(HANG_S) for p in pushes)
    for p in pushes:
        p.finish()


def test_a_hold_waits_for_those_inside_and_keeps_others_out_until_release(
    gate: PushBarrier,
) -> None:
    inside = Push(gate, 0, 1)
    assert inside.inside.wait(HANG_S)
    holding = in_thread(lambda: gate.hold(60))
    holding.join(0.05)
    assert holding.is_alive()
    inside.finish()
    holding.join(HANG_S)
    assert not holding.is_alive()
    outside = Push(gate, 0, 2)
    assert not outside.inside.wait(0.05)
    gate.release()
    assert outside.inside.wait(HANG_S)
    outside.finish()


def test_a_hold_ends_by_itself(gate: PushBarrier) -> None:
    gate.hold(0.05)
    push = Push(gate, 0, 1)
    assert push.inside.wait(HANG_S)
    push.finish()
    with pytest.raises(HoldEndedError), gate.cut(Watermarks(), lambda: True):
        pass


def test_a_cut_lets_in_what_it_names_and_runs_alone(gate: PushBarrier) -> None:
    gate.hold(60)
    done = threading.Event()
    named, other = Push(gate, 7, 64), Push(gate, 7, 128)
    order: list[str] = []

    def cut() -> None:
        with gate.cut(Watermarks(0, {7: 64}), done.is_set):
            order.append("cut")

    cutting = in_thread(cut)
    assert named.inside.wait(HANG_S)
    assert not other.inside.wait(0.05)
    assert order == []
    done.set()
    named.finish()
    cutting.join(HANG_S)
    assert order == ["cut"]
    assert other.inside.wait(HANG_S)  # the hold is over
    other.finish()


def test_a_cut_gives_up_when_the_time_of_the_hold_is_up(gate: PushBarrier) -> None:
    gate.hold(0.05)
    with (
        pytest.raises(HoldEndedError, match="timed out"),
        gate.cut(Watermarks(0, {7: 64}), lambda: False),
    ):
        pytest.fail("it was cut")
    push = Push(gate, 0, 1)
    assert push.inside.wait(HANG_S)
    push.finish()


def test_closing_refuses_those_that_wait(gate: PushBarrier) -> None:
    gate.hold(60)
    push = Push(gate, 0, 1)
    assert not push.inside.wait(0.02)
    gate.close()
    push.join(HANG_S)
    assert isinstance(push.error, StaleIncarnationError)


@pytest.mark.parametrize("held_again", [False, True])
def test_what_passed_after_the_hold_was_up_is_in_no_cut(held_again: bool) -> None:
    now = 0.0
    gate = PushBarrier(lambda: now)
    gate.hold(10)
    beyond: list[int] = []

    def reached() -> bool:
        nonlocal now
        now = 11
        with gate.passing(7, 128):
            beyond.append(128)
        if held_again:
            gate.hold(10)
        return True

    with pytest.raises(HoldEndedError), gate.cut(Watermarks(0, {7: 64}), reached):
        pytest.fail(f"it was cut, with records {beyond} beyond its watermarks")
    assert beyond == [128]


def test_a_push_sleeps_through_a_cut_that_outlasts_the_hold() -> None:
    now, looks = 0.0, 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    gate = PushBarrier(clock)
    gate.hold(10)
    with gate.cut(Watermarks(), lambda: True):
        now, looks = 11, 0
        push = Push(gate, 0, 1)
        assert not push.inside.wait(0.1)
        assert looks < 3
    assert push.inside.wait(HANG_S)
    push.finish()


# ---- a move of the model to other servers ----


def test_no_push_passes_after_the_cut_of_a_move(gate: PushBarrier) -> None:
    gate.hold(10, move=5)
    waiting = Push(gate, 7, 64)
    with gate.cut(Watermarks(), lambda: True, move=5):
        pass
    waiting.finish()
    later = Push(gate, 7, 64)
    later.finish()
    for push in (waiting, later):
        assert "moves to other servers" in str(push.error)
    with pytest.raises(StaleIncarnationError), gate.passing():
        pass


def test_what_comes_late_opens_no_seal(gate: PushBarrier) -> None:
    move(gate, 5)
    gate.release()
    gate.release(move=4)
    gate.hold(10)
    gate.hold(10, move=5)
    gate.release()
    with pytest.raises(StaleIncarnationError), gate.passing():
        pass


def test_a_move_that_came_to_nothing_opens_the_barrier(gate: PushBarrier) -> None:
    move(gate, 5)
    gate.release(move=5)
    with gate.passing():
        pass


def test_the_cut_of_the_next_move_admits_what_it_names(gate: PushBarrier) -> None:
    """Another server may have gone on after the move that failed."""
    move(gate, 5)
    gate.hold(10, move=6)
    cut_after_a_push(gate, 6)
    with pytest.raises(StaleIncarnationError), gate.passing(7, 64):
        pass


def test_a_cut_of_an_earlier_move_seals_nothing(gate: PushBarrier) -> None:
    gate.hold(10, move=6)
    with pytest.raises(HoldEndedError), gate.cut(Watermarks(), lambda: True, move=5):
        pytest.fail("it was cut")
    gate.release(move=6)
    with gate.passing():
        pass


def test_late_calls_of_an_earlier_move_have_no_effect(gate: PushBarrier) -> None:
    gate.hold(10, move=6)
    with pytest.raises(HoldEndedError):
        gate.hold(10, move=5)
    gate.release(move=5)
    assert gate.is_held()
    with gate.cut(Watermarks(), lambda: True, move=6):
        pass


def test_a_move_that_begins_during_the_cut_of_another_one_is_not_sealed_by_it(
    gate: PushBarrier,
) -> None:
    gate.hold(10, move=5)
    with gate.cut(Watermarks(), lambda: True, move=5):
        gate.hold(10, move=6)
    assert gate.is_held()
    cut_after_a_push(gate, 6)


def test_a_cut_that_fails_seals_nothing(gate: PushBarrier) -> None:
    gate.hold(10, move=5)
    with pytest.raises(OSError, match="full"), gate.cut(Watermarks(), lambda: True, move=5):
        raise OSError("full")
    with gate.passing():
        pass

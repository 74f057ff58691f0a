"""Rings: formed only of those who asked, whatever is lost, repeated or late."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from master.state.ring import GRACE_S, PATIENCE_S, Ring
from torch_edl.wire import master_pb2 as pb


def restarted(ring: Ring) -> Ring:
    """The ring as a restarted master knows it."""
    again = Ring()
    again.from_state(json.loads(json.dumps(ring.to_state())), 0.0)
    return again


def ask(ring: Ring, worker: int, step: int = 0, *, now: float = 0.0, was: int | None = None):
    return ring.ask(worker, ring.number if was is None else was, step, f"s{worker}", now)


def form(ring: Ring, *asks: tuple[int, int], **kwargs) -> pb.Ring:
    """The ring of these (worker, step), all members of the newest one among them."""
    for worker, step in asks:
        assert ask(ring, worker, step) is None
    assert ring.due(100.0, min_workers=1, max_workers=99)
    return ring.form(**kwargs)


def test_the_first_ring_waits_for_the_minimum_and_then_with_patience() -> None:
    ring = Ring()
    ask(ring, 1, -1, now=10.0)
    assert not ring.due(60.0, min_workers=2, max_workers=3)
    ask(ring, 0, -1, now=61.0)
    assert not ring.due(61.0 + 0.9 * PATIENCE_S, min_workers=2, max_workers=3)
    ask(ring, 1, -1, now=61.4)  # the long poll again: no reason for more patience
    assert ring.due(61.0 + PATIENCE_S, min_workers=2, max_workers=3)
    ask(ring, 2, -1, now=61.5)
    assert ring.due(61.5, min_workers=2, max_workers=3), "everybody is there"
    formed = ring.form(restored_from="/c", values_only=True)
    assert formed.workers == [0, 1, 2]
    assert (formed.number, formed.source, formed.store) == (1, 0, "s0")
    assert formed.fresh
    assert formed.heal
    assert (formed.restored_from, formed.values_only) == ("/c", True)


def test_members_that_join_are_ordered_by_the_ranks_of_their_processes() -> None:
    """Workers register in any order, and a script reads RANK before the first ring."""
    ring = Ring()
    for worker, rank in ((0, 2), (1, 0), (2, 1)):
        ring.ask(worker, 0, -1, f"s{worker}", 0.0, rank=rank)
    assert ring.form().workers == [1, 2, 0]
    ring.drop(1)
    for worker, rank in ((0, 2), (2, 1), (3, 5), (4, 0)):
        ring.ask(worker, 1 if worker < 3 else 0, 5, f"s{worker}", 0.0, rank=rank)
    assert ring.form().workers == [2, 0, 4, 3], "a member with the model is rank 0"


def test_survivors_keep_their_order_and_joiners_come_after_them() -> None:
    ring = Ring()
    form(ring, (3, -1), (5, -1), (7, -1))
    ring.drop(3)
    formed = form(ring, (2, 999), (7, 5), (5, 4), (1, 0), restored_from="/c")
    assert formed.workers == [5, 7, 1, 2]
    assert formed.source == 1, "the one with the most updates; what a joiner says does not count"
    assert formed.heal
    assert not formed.fresh
    assert formed.restored_from == ""
    ring.drop(7)
    formed = form(ring, (5, 8), (1, 8), (2, 8))
    assert (formed.workers, formed.source, formed.heal) == ([5, 1, 2], 0, False), "all are equal"


def test_every_living_member_is_waited_for() -> None:
    ring = Ring()
    form(ring, (0, -1), (1, -1), (2, -1))
    ask(ring, 0, 4)
    assert not ring.due(1e9, min_workers=1, max_workers=9)
    ring.drop(1)
    assert not ring.due(1e9, min_workers=1, max_workers=9)
    ring.leave(2, 1.0)
    assert ring.due(1.0, min_workers=3, max_workers=9), "those that live continue, few as they are"


def test_a_lost_answer_is_given_again_and_a_late_request_changes_nothing() -> None:
    ring = Ring()
    first = form(ring, (0, -1), (1, -1))
    assert ask(ring, 0, -1, was=0) == first
    assert ring.stale() == 0
    assert ring.broken(1e9) == 0
    ring.drop(1)
    assert ask(ring, 0, -1, was=0) == first, "it has not left that ring"
    assert not ring.due(1e9, min_workers=1, max_workers=1)


def test_a_member_of_a_ring_that_nobody_trained_in_has_no_model() -> None:
    ring = Ring()
    form(ring, (0, -1), (1, -1))
    ring.drop(0)
    ask(ring, 1, -1, now=5.0)
    assert ring.model_lost
    assert not ring.due(5.0, min_workers=1, max_workers=2), "a new life is as patient as the first"
    formed = ring.form(restored_from="/c")
    assert (formed.fresh, formed.restored_from) == (True, "/c")


@pytest.mark.parametrize(
    ("what", "stale", "broken", "late"),
    [
        (lambda ring: ask(ring, 9, -1, now=10.0), 1, 0, 0),  # somebody waits
        (lambda ring: ask(ring, 0, 3, now=10.0), 0, 0, 1),  # members of its step have finished it
        (lambda ring: ring.leave(1, 10.0), 1, 0, 1),
        (lambda ring: ring.drop(1), 0, 1, 1),
    ],
)
def test_what_members_are_told_at_once_and_after_the_grace_period(
    what: Callable[[Ring], Any], stale: int, broken: int, late: int
) -> None:
    ring = Ring()
    ask(ring, 0, -1)
    assert ring.stale() == 0, "there is none yet"
    form(ring, (0, -1), (1, -1), (2, -1))
    what(ring)
    assert (ring.stale(), ring.broken(10.0), ring.broken(10.0 + GRACE_S)) == (stale, broken, late)
    ring.drop(9)
    assert ring.stale() == (stale if ring.left else 0)
    assert ring.wanted(1) == (not ring.left)


def test_after_the_end_members_go_on_and_nobody_joins() -> None:
    ring = Ring()
    form(ring, (0, -1), (1, -1))
    ask(ring, 7, -1)
    ring.leave(0, 1.0, finished=True)
    assert ring.stale() == 1, "only that somebody waits"
    assert ring.wanted(7), "it has only reported its end; the exit code is not known"
    ring.exited(0, well=True)
    assert ring.stale() == 0
    assert not ring.wanted(7)
    assert not ring.wanted(8)
    assert ring.wanted(1)
    assert form(ring, (1, 4)).workers == [1], "the last step again, alone"


def stand_by(ring: Ring, worker: int, step: int, *, was: int | None = None) -> pb.Ring | None:
    return ring.stand_by(worker, ring.number if was is None else was, step, f"s{worker}", 1.0)


def test_who_is_at_the_end_gives_its_model_to_who_takes_the_place_of_rank_0() -> None:
    ring = Ring()
    form(ring, (0, -1), (1, -1), (2, -1))
    assert stand_by(ring, 1, 9) is None
    assert stand_by(ring, 2, 10) is None
    ask(ring, 7, -1)
    assert not ring.due(100.0, min_workers=1, max_workers=9), "rank 0 is at work"
    ring.drop(0)
    ring = restarted(ring)
    assert not ring.due(100.0, min_workers=1, max_workers=9)
    ask(ring, 7, -1)
    assert ring.due(0.0, min_workers=2, max_workers=9), "it waits for nobody else"
    assert not ring.model_lost
    formed = ring.form()
    assert (formed.workers, formed.source, formed.store) == ([7, 2], 1, "s7")
    assert (formed.heal, formed.fresh) == (True, False)
    assert stand_by(ring, 2, 10, was=1) is formed
    assert stand_by(ring, 2, 10) is None
    assert stand_by(ring, 1, 9, was=1) is None
    assert ring.keeps_model(2) is False, "7 has it, and 1"
    ring.leave(7, 2.0, finished=True)
    ring.exited(7, well=True)
    assert not ring.wanted(1)
    assert not ring.wanted(2)


def test_a_script_that_says_it_is_over_and_fails_is_not_over() -> None:
    ring = Ring()
    form(ring, (0, -1), (1, -1))
    assert stand_by(ring, 1, 4) is None
    ring.leave(0, 1.0, finished=True)
    ask(ring, 2, -1)
    assert not ring.due(100.0, min_workers=1, max_workers=2), "its process may still end well"
    ring.exited(0, well=False)
    assert not ring.finished
    assert ring.due(100.0, min_workers=1, max_workers=2)
    assert ring.form().workers == [2, 1]


class Storm:
    """Workers that live, die and talk over a bad network, and what must hold all the time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ring = Ring()
        self.now = 0.0
        self.next_id = 0
        self.step: dict[int, int] = {}  # living workers -> updates of their model
        self.within: dict[int, int] = {}  # -> the ring that they were in last
        self.asking: set[int] = set()  # those that are in no ring now
        self.known: set[int] = set()  # to the master
        self.late: list[tuple[int, int, int]] = []
        self.formed: list[pb.Ring] = []

    def send(self, worker: int, was: int, step: int) -> pb.Ring | None:
        if worker not in self.known or not self.ring.wanted(worker):
            return None  # the master tells it to leave
        answer = self.ring.ask(worker, was, step, f"s{worker}", self.now)
        if answer is None and self.ring.due(self.now, min_workers=2, max_workers=4):
            self.form()
            answer = self.ring.ask(worker, was, step, f"s{worker}", self.now)
        return answer

    def form(self) -> None:
        before, lost = self.ring.current, self.ring.model_lost
        formed = self.ring.form()
        self.formed.append(formed)
        number = before.number if before is not None else 0
        assert formed.number == number + 1
        assert len(set(formed.workers)) == len(formed.workers)
        assert set(formed.workers) <= self.known
        members = [w for w in formed.workers if w in self.step]
        for worker in self.known & self.step.keys():
            inside = worker not in self.asking
            assert not (inside and self.within[worker] > 0), f"{worker} still trains in a ring"
        survivors = [
            w for w in members if before and w in before.workers and self.within[w] == number
        ]
        have = [w for w in survivors if self.step[w] >= 0]
        if have:
            assert not formed.fresh
        assert lost == (formed.fresh and before is not None)
        source = formed.workers[formed.source]
        if not formed.fresh and source in self.step:
            assert self.step[source] >= max(self.step[w] for w in have)
        if not formed.heal:
            assert {self.step[w] for w in members} <= {self.step.get(source, -9)} or (
                source not in self.step
            )

    def one(self) -> None:
        self.now += self.random.random()
        what = self.random.randrange(9)
        workers = sorted(self.step)
        worker = self.random.choice(workers) if workers else -1
        if what == 0 and len(workers) < 5:
            self.step[self.next_id], self.within[self.next_id] = -1, 0
            self.asking.add(self.next_id)
            self.known.add(self.next_id)
            self.next_id += 1
        elif what == 1 and workers and self.random.random() < 0.3:
            del self.step[worker]  # killed; the master hears later
            self.asking.discard(worker)
        elif what == 2 and self.known - self.step.keys():
            dead = self.random.choice(sorted(self.known - self.step.keys()))
            self.known.remove(dead)
            self.ring.drop(dead)
        elif what == 3 and worker in self.step and self.random.random() < 0.2:
            self.ring.leave(worker, self.now)
            del self.step[worker]
            self.asking.discard(worker)
            self.known.discard(worker)
        elif what == 4 and worker in self.step and worker not in self.asking:
            self.asking.add(worker)  # its sockets are closed
        elif what == 5 and self.late:
            self.send(*self.random.choice(self.late))
        elif what == 6:
            self.train()
        elif what == 7:
            self.ring = restarted(self.ring)
        elif worker in self.asking:
            request = (worker, self.within[worker], self.step[worker])
            self.late.append(request)
            answer = self.send(*request)
            if answer is not None and self.random.random() < 0.7:  # else it is lost
                self.asking.remove(worker)
                self.within[worker] = answer.number

    def train(self) -> None:
        current = self.ring.current
        if current is None or any(
            w not in self.step or w in self.asking or self.within[w] != current.number
            for w in current.workers
        ):
            return
        step = max(self.step[current.workers[current.source]], 0)
        for worker in current.workers:
            # The last step may have come through at some of them only.
            self.step[worker] = step + self.random.randrange(2)
            if self.step[worker] == step:
                self.asking.add(worker)


@pytest.mark.parametrize("seed", range(60))
def test_storms(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(1500):
        storm.one()
    assert len(storm.formed) > 5
    assert [f.number for f in storm.formed] == list(range(1, len(storm.formed) + 1))

"""Rounds of torchrun's agents: nobody waits for the dead, nobody stays in an old round."""

from __future__ import annotations

import json
import random

import pytest

from master.state.scripts.rounds import FULL_SILENT_S, LOST_S, SILENT_S, Rounds
from torch_edl.wire import master_pb2 as pb


def ask(
    rounds: Rounds, node: str, now: float, *, least=1, most=4, wish=0, last_call=1.0
) -> pb.Place | None:
    request = pb.JoinRoundRequest(
        node=node,
        store=f"{node}:{wish}",
        min_nodes=least,
        max_nodes=most,
        last_call_s=last_call,
    )
    answer = rounds.ask(request, now)
    return answer.place if answer is not None and answer.HasField("place") else None


def test_the_last_call_begins_again_with_each_node() -> None:
    rounds = Rounds()
    ask(rounds, "a", 0.0)
    ask(rounds, "b", 0.9)
    assert not rounds.form(1.8)
    assert ask(rounds, "a", 1.8) is None, "a node that asks again is the same node"
    assert rounds.form(2.0)
    assert ask(rounds, "b", 2.0).nodes == 2


def test_a_node_that_died_in_its_round_holds_nobody_up() -> None:
    rounds = Rounds()
    for node in "abc":
        ask(rounds, node, 0.0, least=2, most=3)
    now = 10.0
    rounds.look("a", 1, now)
    rounds.look("b", 1, now)
    ask(rounds, "a", now, least=2, most=3, wish=1)
    assert rounds.look("b", 1, now).waiting == 1
    found = ask(rounds, "b", now + 2, least=2, most=3, wish=1)
    assert found is None, "the last call: c may come"
    rounds.form(now + 3)
    assert ask(rounds, "a", now + 3, least=2, most=3, wish=1).nodes == 2
    assert rounds.look("c", 1, now + 3).over


def test_a_living_node_of_the_round_is_waited_for() -> None:
    rounds = Rounds()
    ask(rounds, "a", 0.0, most=2)
    ask(rounds, "b", 0.0, most=2)
    ask(rounds, "a", 1.0, most=2, wish=1)
    assert not rounds.form(4.0)
    assert ask(rounds, "b", 4.0, most=2, wish=1) is not None


def test_a_joiner_ends_the_round_only_if_there_is_room() -> None:
    rounds = Rounds()
    ask(rounds, "a", 0.0, most=2)
    ask(rounds, "b", 0.0, most=2)
    ask(rounds, "c", 1.0, most=2)
    assert rounds.look("a", 1, 1.0).waiting == 0, "full"
    for now in range(2, int(FULL_SILENT_S)):
        assert ask(rounds, "c", float(now), most=2) is None
    rounds.leave("b")
    now = FULL_SILENT_S - 1
    assert rounds.look("a", 1, now).waiting == 1
    ask(rounds, "c", now, most=2)
    assert ask(rounds, "a", now, most=2, wish=1).nodes == 2
    assert ask(rounds, "c", now, most=2).rank == 0, "by order of arrival"


def test_who_waits_is_waited_for_until_it_knows_that_it_is_closed() -> None:
    rounds = Rounds()
    for node in ("a", "b"):
        ask(rounds, node, 0.0, most=1)
    rounds.closed = True
    rounds.leave("a")
    assert not rounds.deserted(1.0)
    assert rounds.deserted(SILENT_S)
    assert ask(rounds, "b", 1.0, most=1) is None
    assert rounds.deserted(1.0)


@pytest.mark.parametrize("seed", range(20))
def test_storms(seed: int) -> None:
    """No two nodes have one rank, and those that live are in a round before long."""
    draw = random.Random(seed)
    rounds, now = Rounds(), 0.0
    wish = dict.fromkeys("abcde", 0)
    alive = set("abcde")
    inside: dict[str, int] = {}
    for turn in range(800):
        calm = turn >= 600
        now += 0.5 if calm else 0.3 * draw.random()
        if not calm and draw.random() < 0.02 and len(alive) > 2:
            inside.pop(node := draw.choice(sorted(alive)), None)
            alive.remove(node)
        elif not calm and draw.random() < 0.05 and alive != set("abcde"):
            alive.add(node := draw.choice(sorted(set("abcde") - alive)))
            wish[node] += 1
        if draw.random() < 0.05:
            state = json.loads(json.dumps(rounds.to_state()))
            rounds = Rounds()
            rounds.from_state(state, now)
        taken: dict[int, str] = {}
        for node in sorted(alive):
            if node in inside:
                look = rounds.look(node, inside[node], now)
                if look.over or look.waiting or (not calm and draw.random() < 0.01):
                    wish[node] += 1
                    del inside[node]
                continue
            place = ask(rounds, node, now, least=2, most=4, wish=wish[node])
            if place is not None and (calm or draw.random() < 0.8):
                assert place.round == rounds.number
                assert place.rank < place.nodes <= 4
                assert taken.setdefault(place.rank, node) == node
                inside[node] = place.round
    assert sum(n == rounds.number for n in inside.values()) == min(4, len(alive))


def test_a_round_is_over_when_a_node_of_it_is_lost_or_leaves() -> None:
    rounds = Rounds()
    for node in ("a", "b"):
        ask(rounds, node, 0.0, least=2, most=3, wish=1, last_call=0)
    assert not rounds.look("a", 1, 1.0).over
    assert not rounds.look("b", 1, LOST_S).over
    assert rounds.look("b", 1, 1.0 + LOST_S).over, "a has been silent"
    assert not rounds.look("a", 1, 1.0 + LOST_S).over, "it is back before anybody went on"
    rounds.leave("a")
    assert rounds.look("b", 1, 1.0 + LOST_S).over

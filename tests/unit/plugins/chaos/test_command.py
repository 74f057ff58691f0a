from __future__ import annotations

import pytest

from torch_edl.cli.arguments.parser import parse
from torch_edl.errors import UsageError
from torch_edl.plugins.chaos import command


def test_faults_that_are_named_one_by_one_all_happen() -> None:
    words = "chaos j --kill worker=1 --kill ps=2,master=1 --pause worker=1:1s --pause ps=1:1s"
    plan = command._plan(parse(words.split()))
    assert plan.roles(killed=True) == {"worker": 1, "ps": 2, "master": 1}
    assert plan.roles(killed=False) == {"worker": 1, "ps": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--kill: missing; name roles and numbers"),
        ("--plan storm.toml --kill ps=1", "--plan and --kill ps=1: the plan says that"),
        ("--kill wroker=1", "--kill wroker=1: no such role"),
        ("--kill worker=1 --every soon", "--every soon: not a duration"),
        ("--kill worker=1 --for 0s", "--for 0s: not a duration"),
    ],
)
def test_a_plan_that_cannot_be(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command._plan(parse(["chaos", "j", *words.split()]))

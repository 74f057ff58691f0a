from __future__ import annotations

from torch_edl.cli.arguments.parser import parse
from torch_edl.plugins.chaos import command


def test_faults_that_are_named_one_by_one_all_happen() -> None:
    words = "chaos j --kill worker=1 --kill ps=2,master=1 --pause worker=1:1s --pause ps=1:1s"
    plan = command._plan(parse(words.split()))
    assert plan.roles(killed=True) == {"worker": 1, "ps": 2, "master": 1}
    assert plan.roles(killed=False) == {"worker": 1, "ps": 1}

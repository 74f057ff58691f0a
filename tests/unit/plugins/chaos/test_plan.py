"""What a user may ask for, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.errors import UsageError
from torch_edl.plugins.chaos.plan import Fault, StormPlan, duration, faults, read


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("3s", 3), ("1.5m", 90), ("2h", 7200), ("7", 7)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text, "--every") == seconds


@pytest.mark.parametrize("text", ["", "s", "-3s", "0s", "3 days", "nan", "inf", "1e3s", "99999h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match=r"--every .*: not a duration; write 500ms, 3s or 2m"):
        duration(text, "--every")


def test_words_of_the_command_line() -> None:
    assert faults(kill="worker=2, ps", pause="master=1:500ms", every_s=3.0) == (
        Fault(role="worker", count=2, every_s=3.0),
        Fault(role="ps", count=1, every_s=3.0),
        Fault(role="master", count=1, pause_s=0.5, every_s=3.0),
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"kill": "wroker=1"},
            "--kill wroker=1: no such role; choose from worker, ps, master",
        ),
        ({"kill": "worker=0"}, "--kill worker=0: how many?"),
        ({"kill": "worker=x"}, "--kill worker=x: how many?"),
        ({"kill": "worker=99999999999"}, "--kill worker=9+: how many?"),
        ({"pause": "worker=1"}, "--pause worker=1: for how long?"),
        ({"pause": "worker=1:x"}, "--pause worker=1: x: not a duration"),
    ],
)
def test_a_wrong_word_is_named(words: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        faults(**words, every_s=3.0)  # type: ignore[arg-type]


def plan(folder: Path, text: str) -> StormPlan:
    file = folder / "storm.toml"
    file.write_text(text)
    return read(file, seed=None, for_s=None)


def test_a_file(tmp_path: Path) -> None:
    text = """
        seed = 7
        for = "1m"
        [[fault]]
        kill = "worker=2"
        signal = "TERM"
        every = "3s"
        [[fault]]
        kill = "ps=1,master=1"
        at = "10s"
    """
    expected = (
        Fault(role="worker", count=2, signal="TERM", every_s=3.0),
        Fault(role="ps", at_s=10.0),
        Fault(role="master", at_s=10.0),
    )
    found = plan(tmp_path, text)
    assert found == StormPlan(faults=expected, for_s=60.0, seed=7)
    assert found.roles(killed=True) == {"worker": 2, "ps": 1, "master": 1}
    assert found.roles(killed=False) == {}
    assert read(tmp_path / "storm.toml", seed=1, for_s=5.0).seed == 1


def test_a_file_of_single_faults_lasts_until_the_last(tmp_path: Path) -> None:
    assert plan(tmp_path, '[[fault]]\npause = "ps=1:2s"\nat = "4s"').for_s == 4.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = ", "Invalid value"),
        ("", "no fault; write"),
        ("fault = 3", "no fault; write"),
        ("fault = [3]", r"write \[\[fault\]\]"),
        ("sed = 3", "sed: no such key of the plan; it has fault, for, seed"),
        ('[[fault]]\nkil = "ps=1"', "kil: no such key of a fault"),
        ('[[fault]]\nkill = "ps=1"', "either every"),
        ('[[fault]]\nkill = "ps=1"\nevery = "1s"\nat = "1s"', "either every"),
        ('[[fault]]\nevery = "3s"\n', "fault 1: it needs kill"),
        ('[[fault]]\nkill = 1\nevery = "3s"\n', "kill = 1: expected a text"),
        ('[[fault]]\nkill = "ps"\nevery = "3s"\nsignal = "HUP"', "signal = 'HUP': choose from"),
        ('[[fault]]\nkill = "ps"\nevery = "3s"', "for: missing; say how long the rounds last"),
        (
            '[[fault]]\nkill = "ps"\nat = "3s"\n[[fault]]\nkill = "gpu"\nat = "3s"',
            "fault 2: kill = gpu: no",
        ),
        ('seed = "a"\nfor = "9s"\n[[fault]]\nkill = "ps"\nevery = "3s"', "seed = 'a': expected"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=rf"--plan .*storm.toml: .*{message}"):
        plan(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--plan .*none.toml: No such file"):
        read(tmp_path / "none.toml", seed=None, for_s=None)

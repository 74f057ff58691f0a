"""The reader of the JSON that torch-edl writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from torch_edl.typed_json import MOST_DEPTH, Count, Range, convert, parse


@dataclass(frozen=True)
class Part:
    share: Annotated[float, Range(0, 1)]
    names: tuple[str, ...] = ()
    marks: dict[Count, Count] = field(default_factory=dict)


class Whole(TypedDict):
    part: Part
    best: Part | None
    more: NotRequired[list[bool]]


GOOD = '{"part": {"share": 1, "marks": {"3": 4}}, "best": null, "new": [0]}'


def test_values_have_their_types() -> None:
    found = parse(GOOD, Whole)
    assert found["part"] == Part(1, (), {3: 4})
    assert (found["best"], found.get("new")) == (None, [0])
    assert convert({"share": 0.5, "names": ["a"]}, Part) == Part(0.5, ("a",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("[]", "a list, expected an object"),
        ('{"part": {"share": 1}}', "expected the key best"),
        (GOOD.replace("null", '{"share": "1"}'), 'best.share: "1", expected a number'),
        (GOOD.replace("null", "7"), "best: 7, expected"),
        (GOOD.replace('"share": 1', '"share": true'), "part.share: true, expected a number"),
        (GOOD.replace('"share": 1', '"share": 2'), "part.share: 2, expected a number from 0 to 1"),
        (GOOD.replace('"share": 1', '"share": NaN'), "NaN: not a finite number"),
        (GOOD.replace('"share": 1', '"share": 1e999'), "1e999: not a finite number"),
        (GOOD.replace('"share": 1', '"share": 1, "shape": 2'), "part.*: .*one of the keys share"),
        (GOOD.replace('"3"', '"03"'), 'part.marks.03: "03", expected an integer as the key'),
        (GOOD.replace('"3"', '"-3"'), "part.marks.-3: .* from 0"),
        (GOOD.replace("4", str(2**70)), "part.marks.3: .* 64 bits"),
        (GOOD.replace("[0]", "[" * 100 + "]" * 100), f"new: a list, expected at most {MOST_DEPTH}"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"x": ' + "9" * 5000 + "}", "limit"),
        (b"\xff\xfe\x00", "decode"),
    ],
)
def test_the_place_of_a_wrong_value_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text, Whole)


def test_numbers_that_are_not_finite_are_read_on_request() -> None:
    found = parse(json.dumps({"a": float("inf")}), dict[str, Any], finite=False)
    assert found == {"a": float("inf")}

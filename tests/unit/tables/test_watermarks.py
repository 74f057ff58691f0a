"""What a server has applied, as one offset per task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import WHOLE, Watermarks


def test_a_range_is_next_then_applied() -> None:
    watermarks = Watermarks()
    assert not watermarks.has(5, 0, 64)
    watermarks.advance(5, 64)
    assert watermarks.has(5, 0, 64)
    assert watermarks.has(5, 0, 32)
    assert not watermarks.has(5, 64, 128)


@pytest.mark.parametrize(
    ("first", "last", "what"),
    [(65, 128, "gap"), (0, 128, "in part"), (32, 65, "in part"), (8, 8, "empty"), (-1, 9, "empty")],
)
def test_ranges_that_cannot_be_are_refused(first: int, last: int, what: str) -> None:
    watermarks = Watermarks(0, {5: 64})
    with pytest.raises(UsageError, match=what):
        watermarks.has(5, first, last)
    assert watermarks == Watermarks(0, {5: 64})


def test_retired_tasks_are_whole_and_forgotten() -> None:
    watermarks = Watermarks(0, {1: 10, 2: 20, 3: 30})
    watermarks.retire(3)
    assert watermarks.offsets == {3: 30}
    assert watermarks.has(2, 20, 999)
    assert watermarks.offset(2) == WHOLE
    watermarks.advance(2, 40)  # a push that was on its way
    assert watermarks.offsets == {3: 30}
    watermarks.retire(1)  # an old message
    assert watermarks.retired_before == 3


offsets = st.dictionaries(st.integers(0, 9), st.integers(1, 99), max_size=6)
some_marks = st.builds(
    lambda before, o: Watermarks(before, {t: v for t, v in o.items() if t >= before}),
    st.integers(0, 5),
    offsets,
)


@given(st.lists(some_marks, max_size=4))
def test_the_union_has_what_any_has_and_no_more(parts: list[Watermarks]) -> None:
    union = Watermarks.union(parts)
    for task in range(12):
        assert union.offset(task) == max((m.offset(task) for m in parts), default=0)
    assert all(union.reached(m) for m in parts)


@given(some_marks)
def test_messages_carry_all(watermarks: Watermarks) -> None:
    assert Watermarks.from_proto(watermarks.to_proto()) == watermarks


def test_reached() -> None:
    targets = Watermarks(0, {1: 10, 2: 5})
    assert not Watermarks(0, {1: 10}).reached(targets)
    assert Watermarks(0, {1: 10, 2: 6}).reached(targets)
    assert Watermarks(2, {2: 5}).reached(targets)
    assert Watermarks(3).reached(targets)

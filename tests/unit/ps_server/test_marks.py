"""What a server has applied, as one offset per task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_edl.errors import UsageError
from torch_edl.ps_server.marks import WHOLE, Marks


def test_a_range_is_next_then_applied() -> None:
    marks = Marks()
    assert not marks.has(5, 0, 64)
    marks.advance(5, 64)
    assert marks.has(5, 0, 64)
    assert marks.has(5, 0, 32)
    assert not marks.has(5, 64, 128)


@pytest.mark.parametrize(
    ("first", "last", "what"),
    [(65, 128, "gap"), (0, 128, "in part"), (32, 65, "in part"), (8, 8, "empty"), (-1, 9, "empty")],
)
def test_ranges_that_cannot_be_are_refused(first: int, last: int, what: str) -> None:
    marks = Marks(0, {5: 64})
    with pytest.raises(UsageError, match=what):
        marks.has(5, first, last)
    assert marks == Marks(0, {5: 64})


def test_retired_tasks_are_whole_and_forgotten() -> None:
    marks = Marks(0, {1: 10, 2: 20, 3: 30})
    marks.retire(3)
    assert marks.offsets == {3: 30}
    assert marks.has(2, 20, 999)
    assert marks.offset(2) == WHOLE
    marks.advance(2, 40)  # a push that was on its way
    assert marks.offsets == {3: 30}
    marks.retire(1)  # an old message
    assert marks.retired_before == 3


offsets = st.dictionaries(st.integers(0, 9), st.integers(1, 99), max_size=6)
some_marks = st.builds(
    lambda before, o: Marks(before, {t: v for t, v in o.items() if t >= before}),
    st.integers(0, 5),
    offsets,
)


@given(st.lists(some_marks, max_size=4))
def test_the_union_has_what_any_has_and_no_more(parts: list[Marks]) -> None:
    union = Marks.union(parts)
    for task in range(12):
        assert union.offset(task) == max((m.offset(task) for m in parts), default=0)
    assert all(union.reached(m) for m in parts)


@given(some_marks)
def test_messages_carry_all(marks: Marks) -> None:
    assert Marks.from_proto(marks.to_proto()) == marks


def test_reached() -> None:
    targets = Marks(0, {1: 10, 2: 5})
    assert not Marks(0, {1: 10}).reached(targets)
    assert Marks(0, {1: 10, 2: 6}).reached(targets)
    assert Marks(2, {2: 5}).reached(targets)
    assert Marks(3).reached(targets)

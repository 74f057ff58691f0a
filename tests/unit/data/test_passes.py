"""What is left of a span without the records that are left out."""

from __future__ import annotations

import pytest

from torch_edl.data.passes import Span, without


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        ([], [(8, 16)]),
        ([(0, 8), (16, 20)], [(8, 16)]),
        ([(8, 16)], []),
        ([(0, 20)], []),
        ([(6, 10)], [(10, 16)]),
        ([(14, 18)], [(8, 14)]),
        ([(10, 12)], [(8, 10), (12, 16)]),
        ([(10, 12), (11, 14), (15, 16)], [(8, 10), (14, 15)]),
    ],
)
def test_without(skip: list[Span], left: list[Span]) -> None:
    assert without((8, 16), skip) == left
    inside = {n for n in range(8, 16) if not any(first <= n < last for first, last in skip)}
    assert {n for first, last in left for n in range(first, last)} == inside

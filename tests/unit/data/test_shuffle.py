"""Permutations, as pure functions of their keys."""

from __future__ import annotations

import pytest

from torch_edl.data.shuffle import Permutation


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 1024, 1025])
def test_a_permutation_is_a_bijection_with_its_inverse(size):
    permutation = Permutation(size, 7, 3)
    image = [permutation.forward(i) for i in range(size)]
    assert sorted(image) == list(range(size))
    assert [permutation.inverse(v) for v in image] == list(range(size))


def test_seed_and_epoch_change_a_permutation():
    def order(seed: int, epoch: int) -> list[int]:
        permutation = Permutation(50, seed, epoch)
        return [permutation.forward(i) for i in range(50)]

    assert order(1, 0) == order(1, 0)
    orders = [order(1, 0), order(1, 1), order(2, 0), order(-1, 0)]
    assert len({tuple(o) for o in orders}) == 4
    assert list(range(50)) not in orders


def test_every_place_is_equally_likely_for_the_first():
    counts = [0] * 10
    for seed in range(2000):
        counts[Permutation(10, seed, 0).forward(0)] += 1
    # 200 expected, standard deviation 13.4.
    assert all(130 < count < 270 for count in counts), counts


def test_a_large_permutation_is_computed_at_once():
    permutation = Permutation(10**12, 1, 1)
    assert permutation.inverse(permutation.forward(123_456_789_012)) == 123_456_789_012


@pytest.mark.parametrize("size", [1, 2, 5, 1000, 1025])
def test_a_span_has_the_numbers_at_its_positions(size: int) -> None:
    permutation = Permutation(size, 7, 5, 3)
    numbers = [permutation.forward(i) for i in range(size)]
    for first, last in ((0, size), (size // 2, size), (size // 3, size // 2), (0, 0)):
        assert permutation.span(first, last).tolist() == numbers[first:last]


def test_the_order_is_the_same_in_each_version() -> None:
    """A checkpoint and a ledger name records by their position in this order; another order needs
    another version of the rules, ``CUTS`` in torch_edl/data/cuts.py."""
    assert Permutation(10, 0, 0).span(0, 10).tolist() == [8, 6, 2, 5, 3, 4, 1, 7, 0, 9]
    assert Permutation(10, 1, 2, 3).span(0, 10).tolist() == [3, 0, 9, 7, 6, 1, 8, 5, 4, 2]

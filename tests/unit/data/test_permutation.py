"""The shuffle is a bijection, depends on seed and epoch, and is undone by its inverse."""

from __future__ import annotations

import pytest

from torch_edl.data.permutation import Permutation


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 100, 1023, 1024, 1025])
def test_it_is_a_bijection_with_its_inverse(size):
    permutation = Permutation(size, seed=7, epoch=3)
    image = [permutation.forward(i) for i in range(size)]
    assert sorted(image) == list(range(size))
    assert [permutation.inverse(v) for v in image] == list(range(size))


def test_seed_and_epoch_change_it():
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


def test_a_large_one_is_computed_at_once():
    permutation = Permutation(10**12, 1, 1)
    assert permutation.inverse(permutation.forward(123_456_789_012)) == 123_456_789_012

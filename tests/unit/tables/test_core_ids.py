"""The compiled core: partitions of ids, gather and scatter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tables.core_tables import any_ids
from torch_edl import _core


@given(any_ids, st.integers(1, 7))
@settings(max_examples=200)
def test_unique_partition_groups_by_owner_in_order_of_first_appearance(
    ids: np.ndarray, shards: int
) -> None:
    unique, offsets, inverse = _core.unique_partition(ids, shards)
    assert (unique[inverse] == ids).all()
    assert offsets[0] == 0
    assert offsets[-1] == len(unique) == len(set(ids.tolist()))
    owners = _core.owner(ids, shards)
    for shard in range(shards):
        mine = unique[offsets[shard] : offsets[shard + 1]].tolist()
        assert mine == list(dict.fromkeys(ids[owners == shard].tolist()))


def test_unique_partition_keeps_nothing_from_earlier_calls() -> None:
    for n in (5, 100_000, 3, 70_000, 1):
        ids = np.arange(n, dtype=np.int64) % max(1, n // 2)
        unique, _, _ = _core.unique_partition(ids, 1)
        assert len(unique) == len(np.unique(ids))


def test_owners_are_evenly_spread_whatever_the_ids_have_in_common() -> None:
    for ids in (np.arange(40_000), np.arange(40_000) * 4096, -np.arange(40_000)):
        counts = np.bincount(_core.owner(ids.astype(np.int64), 3), minlength=3)
        assert counts.min() > 0.95 * 40_000 / 3


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 32, 64, 100])
def test_gather_and_scatter(dim: int) -> None:
    rng = np.random.default_rng(dim)
    source = rng.standard_normal((50, dim), dtype=np.float32)
    inverse = rng.integers(0, 50, 333)
    out = np.empty((333, dim), np.float32)
    _core.gather(source, inverse, out)
    assert (out == source[inverse]).all()
    sums = np.full((50, dim), 9.0, np.float32)
    _core.scatter_sum(out, inverse, sums)
    expected = np.zeros((50, dim), np.float32)
    np.add.at(expected, inverse, out)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)
    _core.scatter_add(out, inverse, sums)
    np.testing.assert_allclose(sums, 2 * expected, rtol=1e-5, atol=1e-5)


def test_an_index_out_of_range_is_refused() -> None:
    source, out = np.zeros((3, 2), np.float32), np.zeros((1, 2), np.float32)
    for bad in (-1, 3):
        with pytest.raises(IndexError, match="inverse"):
            _core.gather(source, np.array([bad]), out)
        with pytest.raises(IndexError, match="inverse"):
            _core.scatter_sum(out, np.array([bad]), source)


def test_arrays_of_the_wrong_kind_are_named() -> None:
    table = _core.Table("t", 4, "zeros", {}, 7, _core.Optimizer("sgd", {"lr": 1.0}))
    with pytest.raises(ValueError, match=r"ids: expected .* int64 .* got float64"):
        table.pull(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"grads: .*\(2, 4\), got float32 of shape \(2, 3\)"):
        table.push(np.arange(2), np.zeros((2, 3), np.float32), 1.0, 1)
    with pytest.raises(ValueError, match="not contiguous"):
        table.pull(np.arange(10)[::2])
    frozen = np.zeros((2, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _core.gather(np.zeros((1, 4), np.float32), np.zeros(2, np.int64), frozen)

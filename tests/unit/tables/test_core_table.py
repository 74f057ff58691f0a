"""The compiled core: initial rows and tables. The optimizers are in tests/contract."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tables.core_tables import INT64, any_ids, core_table, make, rows
from torch_edl import _core

pytestmark = pytest.mark.usefixtures("storage")

EXTREME = np.array([INT64.min, INT64.min + 1, -2, -1, 0, 1, 2, INT64.max - 1, INT64.max], np.int64)


# ---- initial rows ----


def test_a_row_starts_as_a_function_of_seed_table_and_id_alone() -> None:
    ids = np.random.default_rng(0).permutation(5000) - 2500
    args = {"std": 1.0}
    expected = _core.init_rows("t", 7, "normal", args, ids, 4)
    forward, backward = make(), make()
    for start in range(0, 5000, 777):
        rows(forward, ids[start : start + 777], read_only=False)
    rows(backward, ids[::-1].copy(), read_only=False)
    assert (rows(forward, ids) == expected).all()
    assert (rows(backward, ids) == expected).all()
    assert (rows(make(), ids) == expected).all()  # read_only: without a row
    for other in (("u", 7), ("t", 8)):
        differs = _core.init_rows(*other, "normal", args, ids, 4) != expected
        assert differs.mean() > 0.99


@pytest.mark.parametrize(
    ("kind", "args", "mean", "std", "low", "high"),
    [
        ("zeros", {}, 0, 0, 0, 0),
        ("constant", {"value": 0.5}, 0.5, 0, 0.5, 0.5),
        ("uniform", {"low": -1, "high": 3}, 1, 4 / 12**0.5, -1, 3),
        ("normal", {"mean": 2, "std": 0.5}, 2, 0.5, -2, 6),
    ],
)
def test_initializers_have_the_distribution_asked_for(
    kind: str, args: dict[str, float], mean: float, std: float, low: float, high: float
) -> None:
    values = _core.init_rows("t", 1, kind, args, np.arange(20_000), 9)
    assert values.min() >= low
    assert values.max() <= high
    assert abs(values.mean() - mean) < 0.02 * max(1, std)
    assert abs(values.std() - std) < 0.02 * max(1, std)
    # Rows and columns are independent: no row predicts the next, no column its neighbour.
    if std:
        centred = (values - mean) / std
        assert abs((centred[1:] * centred[:-1]).mean()) < 0.02
        assert abs((centred[:, 1:] * centred[:, :-1]).mean()) < 0.02


def test_unknown_initializers_and_arguments_are_named() -> None:
    ids = np.arange(1)
    with pytest.raises(ValueError, match="magic"):
        _core.init_rows("t", 1, "magic", {}, ids, 2)
    with pytest.raises(ValueError, match="sigma"):
        _core.init_rows("t", 1, "normal", {"sigma": 1.0}, ids, 2)


# ---- tables ----


def test_every_int64_is_a_legal_id() -> None:
    table = make()
    before = rows(table, EXTREME, read_only=False)
    assert table.size == len(EXTREME)
    assert len(np.unique(before, axis=0)) == len(EXTREME)
    table.push(EXTREME, np.ones_like(before), 1.0, 1)
    np.testing.assert_array_equal(rows(table, EXTREME), before - 1)
    assert table.size == len(EXTREME)


@given(st.lists(any_ids, max_size=6))
@settings(max_examples=50)
def test_a_table_does_what_a_dict_does(batches: list[np.ndarray]) -> None:
    table = make(dim=2)
    model: dict[int, np.ndarray] = {}
    for step, ids in enumerate(batches, 1):
        grads = np.ones((len(ids), 2), np.float32)  # duplicates are summed
        table.push(ids, grads, 1.0, step)
        for i in ids.tolist():
            start = _core.init_rows("t", 7, "normal", {"std": 1.0}, np.array([i]), 2)[0]
            model[i] = model.get(i, start) - 1
    keys = np.array(sorted(model), np.int64)
    assert table.size == len(keys)
    if len(keys):
        expected = np.stack([model[k] for k in keys.tolist()])
        np.testing.assert_allclose(rows(table, keys), expected, atol=1e-5)


def test_duplicates_are_one_update_of_the_sum() -> None:
    once, twice = make(kind="adagrad"), make(kind="adagrad")
    twice.push(np.array([5, 6, 5]), np.ones((3, 4), np.float32), 0.1, 1)
    once.push(np.array([5, 6]), np.array([[2.0] * 4, [1.0] * 4], np.float32), 0.1, 1)
    ids = np.array([5, 6])
    np.testing.assert_array_equal(rows(twice, ids), rows(once, ids))


def test_a_large_batch_with_a_duplicate_far_away() -> None:
    ids = np.arange(50_000)
    ids[-1] = 0
    table = make(dim=1)
    start = rows(table, ids[:1])
    table.push(ids, np.ones((len(ids), 1), np.float32), 1.0, 1)
    assert rows(table, ids[:1]) == start - 2
    assert table.size == len(ids) - 1


def decode(table: _core.Table, ids: np.ndarray, grads: np.ndarray) -> None:
    _core.decode_gradients([(table, ids.tobytes(), grads.tobytes(), "fp32")])


def test_ids_beyond_the_bound_are_named_and_change_nothing() -> None:
    table = make(num_embeddings=10)
    start = rows(table, np.arange(10))
    for bad in (-1, 10, INT64.min):
        ids = np.array([3, bad])
        for call in (
            lambda ids=ids: table.pull(ids),
            lambda ids=ids: table.push(ids, np.ones((2, 4), np.float32), 1.0, 1),
            lambda ids=ids: decode(table, ids, np.ones((2, 4), np.float32)),
        ):
            with pytest.raises(ValueError, match=rf"table t: id {bad} is outside \[0, 10\)"):
                call()
    assert (rows(table, np.arange(10)) == start).all()


def test_gradients_that_are_not_finite_are_named() -> None:
    table = make()
    for bad in (np.nan, np.inf, -np.inf):
        grads = np.zeros((5000, 4), np.float32)
        grads[4321, 2] = bad
        with pytest.raises(ValueError, match="id 4321"):
            decode(table, np.arange(5000), grads)
        assert _core.first_nonfinite(grads.reshape(-1)) == 4321 * 4 + 2
    decode(table, np.arange(5000), np.full((5000, 4), 3e38, np.float32))


def test_a_frozen_table_gives_rows_and_takes_no_gradient() -> None:
    table = core_table("f", 2, "constant", {"value": 3.0}, 0, None)
    assert (rows(table, np.arange(4), read_only=False) == 3).all()
    with pytest.raises(ValueError, match="frozen"):
        table.push(np.arange(4), np.ones((4, 2), np.float32), 1.0, 1)


def test_read_only_pulls_make_no_row() -> None:
    table = make()
    rows(table, np.arange(100), read_only=True)
    assert table.size == 0
    rows(table, np.arange(100), read_only=False)
    assert table.size == 100

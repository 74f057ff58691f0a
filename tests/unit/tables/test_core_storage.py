"""Tables that keep their rows in 16 or 8 bits: what is rounded, how, and what stays exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.tables.core_tables import core_table, rows
from torch_edl import _core

pytestmark = pytest.mark.usefixtures("storage")

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
KEPT = [*SHORT, "int8"]
IDS = np.arange(-50, 3_950)


def make(dtype: str, dim: int = 16, kind: str = "sgd", start: float = 0.0) -> _core.Table:
    rate = {"lr": 1.0} if kind == "sgd" else {"lr": 0.1}
    optimizer = _core.Optimizer(kind, rate)
    return core_table("t", dim, "constant", {"value": start}, 7, optimizer, dtype=dtype)


def units(values: np.ndarray) -> np.ndarray:
    """The steps (n, 1) of rows (n, dim) in 8 bits: the least powers of two of which no value has
    more than 127."""
    largest = np.abs(values.astype(np.float64)).max(1, keepdims=True)
    _, exponent = np.frexp(np.maximum(largest, 1e-300) / 127)
    exponent -= np.ldexp(0.5, exponent) * 127 == largest  # an exact power of two
    return np.ldexp(1.0, np.clip(exponent, -126, 121))


def nearest(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rows (n, dim) of float32, each value rounded to the nearest number of the type."""
    if dtype == "int8":
        unit = units(values)
        return np.asarray(np.rint(values / unit) * unit + 0.0, np.float32)  # no -0
    return np.asarray(torch.from_numpy(values.copy()).to(SHORT[dtype]).float().numpy())


def kept(values: np.ndarray, dtype: str) -> np.ndarray:
    """Whether each float32 value is a number of the type."""
    return np.asarray(nearest(values, dtype) == values)


def spread(dtype: str, shape: tuple[int, int]) -> np.ndarray:
    """Values of all sizes, down to a tenth of the smallest step and up to the largest number."""
    rng = np.random.default_rng(3)
    low, high = (-30, 15.9) if dtype == "fp16" else (-120, 127.9)
    signs = rng.choice([-1.0, 1.0], shape)
    return np.asarray(signs * 2.0 ** rng.uniform(low, high, shape), np.float32)


@pytest.mark.parametrize("dtype", KEPT)
def test_an_update_rounds_to_one_of_the_two_nearest_numbers(dtype: str) -> None:
    table, wanted = make(dtype), spread(dtype, (len(IDS), 16))
    table.push(IDS, -wanted, 1.0, 1)  # from zero, at a rate of 1
    found = rows(table, IDS)
    assert kept(found, dtype).all()
    # A unit in the last place below the wanted value; of subnormal numbers, the smallest number.
    digits, least = (10, 2.0**-24) if dtype == "fp16" else (7, 2.0**-133)
    step = np.maximum(2.0 ** (np.floor(np.log2(np.abs(wanted))) - digits), least)
    if dtype == "int8":
        step = units(wanted)
    off = found.astype(np.float64) - wanted
    assert (np.abs(off) < step).all()
    exact = kept(wanted, dtype)
    assert (off[exact] == 0).all()


@pytest.mark.parametrize("dtype", KEPT)
@pytest.mark.parametrize("size", [1.0, 2.0**-16])
def test_the_mean_of_what_is_kept_is_the_value(dtype: str, size: float) -> None:
    step = {"bf16": 2.0**-7, "fp16": 2.0**-10, "int8": 2.0**-6}[dtype] * size
    if dtype == "fp16" and size < 2.0**-14:
        step = 2.0**-24
    for part in (0.125, 0.5, 0.9375):
        table = make(dtype)
        table.push(IDS, np.full((len(IDS), 16), -(size + part * step), np.float32), 1.0, 1)
        found = (rows(table, IDS).astype(np.float64) - size) / step
        assert set(np.unique(found)) == {0.0, 1.0}
        error = (part * (1 - part) / found.size) ** 0.5
        assert abs(found.mean() - part) < 5 * error


@pytest.mark.parametrize("dtype", KEPT)
def test_updates_smaller_than_a_step_are_not_lost(dtype: str) -> None:
    table, ids = make(dtype, start=1.0), IDS[:500]
    gradient = np.full((500, 16), 1e-4, np.float32)
    for step in range(1, 1001):
        table.push(ids, gradient, 1.0, step)
    found = rows(table, ids)
    assert abs(found.mean() - 0.9) < 0.002
    lost = np.ones((1, 1), np.float32)
    for _ in range(1000):
        lost = nearest(lost - np.float32(1e-4), dtype)  # as without chance: all of them are lost
    assert lost == 1.0


@pytest.mark.parametrize("dtype", KEPT)
@pytest.mark.parametrize("dim", [1, 3, 16, 40])
def test_equal_updates_give_equal_bits(dtype: str, dim: int) -> None:
    """In any order of ids, and whatever other rows there are: as a log is replayed."""
    one, other = make(dtype, dim, "adam", 0.5), make(dtype, dim, "adam", 0.5)
    rng = np.random.default_rng(9)
    other.pull(IDS + 100_000)
    for step in range(1, 6):
        ids = rng.choice(IDS, 1000, replace=False)
        gradient = rng.standard_normal((1000, dim), np.float32)
        order = rng.permutation(1000)
        one.push(ids, gradient, 0.1, step)
        other.push(ids[order], gradient[order], 0.1, step)
    assert rows(one, IDS).tobytes() == rows(other, IDS).tobytes()
    assert kept(rows(one, IDS), dtype).all()


@pytest.mark.parametrize("dtype", KEPT)
def test_slots_are_whole_and_a_snapshot_has_what_there_is(dtype: str) -> None:
    table, exact = make(dtype, 3, "adagrad"), make("fp32", 3, "adagrad")
    gradient = np.random.default_rng(1).standard_normal((len(IDS), 3), np.float32)
    for each in (table, exact):
        each.push(IDS, gradient, 0.1, 1)
    copies = []
    for each in (table, exact):
        each.begin_snapshot()
        ids, vectors, slots, last_used, count = each.next_chunk(10_000)
        each.end_snapshot()
        copies.append((slots[np.argsort(ids)], vectors[np.argsort(ids)]))
    assert copies[0][0].tobytes() == copies[1][0].tobytes()
    rtol = 2.0 ** (-6 if dtype == "int8" else -7)  # all values of the first step have one size
    np.testing.assert_allclose(copies[0][1], copies[1][1], rtol=rtol)
    again = make(dtype, 3, "adagrad")
    order = np.argsort(ids)
    again.load(ids[order], *copies[0][::-1], last_used[order], count[order])
    for each in (table, again):
        each.push(IDS, gradient, 0.1, 2)
    assert rows(table, IDS).tobytes() == rows(again, IDS).tobytes()
    scanned, vectors, _ = again.scan(0, 10_000)
    assert vectors[np.argsort(scanned)].tobytes() == rows(again, IDS).tobytes()


@pytest.mark.parametrize("dtype", KEPT)
def test_a_row_starts_the_same_whether_it_is_made_or_not(dtype: str) -> None:
    table = core_table("t", 5, "normal", {"std": 1.0}, 7, _core.Optimizer("sgd", {}), dtype=dtype)
    seen = rows(table, IDS, read_only=True)
    assert table.size == 0
    assert rows(table, IDS, read_only=False).tobytes() == seen.tobytes()
    whole = _core.init_rows("t", 7, "normal", {"std": 1.0}, IDS, 5)
    assert seen.tobytes() == nearest(whole, dtype).tobytes()
    begun = _core.init_rows("t", 7, "normal", {"std": 1.0}, IDS, 5, dtype)
    assert seen.tobytes() == begun.tobytes()


@pytest.mark.parametrize("dtype", KEPT)
def test_rows_travel_as_they_lie(dtype: str) -> None:
    table = make(dtype, start=0.3)
    table.push(IDS, np.random.default_rng(1).standard_normal((len(IDS), 16), np.float32), 0.1, 1)
    for wire in SHORT:
        (sent,) = _core.pull_tables([(table, IDS.tobytes())], wire)
        wanted = torch.from_numpy(rows(table, IDS)).to(SHORT[wire])
        assert sent.tobytes() == wanted.view(torch.int16).numpy().tobytes()
        if wire == dtype or (dtype, wire) == ("int8", "bf16"):
            assert wanted.float().numpy().tobytes() == rows(table, IDS).tobytes()


@pytest.mark.parametrize("dtype", KEPT)
def test_a_finite_row_stays_finite(dtype: str) -> None:
    largest = 127 * 2.0**121 if dtype == "int8" else float(torch.finfo(SHORT[dtype]).max)
    table = make(dtype)
    table.push(IDS, np.full((len(IDS), 16), -largest * 1.001, np.float32), 1.0, 1)
    assert np.unique(rows(table, IDS)).tolist() == [largest]


def test_a_row_of_8_bits_that_was_read_and_stored_again_is_the_same() -> None:
    """After a restore, on a replica, and in a log that is replayed from a snapshot."""
    rng = np.random.default_rng(5)
    ids = np.arange(20_000)
    sizes = rng.uniform(-160, 128, (len(ids), 1)) - rng.uniform(0, 10, (len(ids), 16))
    values = np.float32(rng.choice([-1, 0, 1], (len(ids), 16)) * 2.0**sizes)  # also denormal
    values[1] = np.finfo(np.float32).max
    values[2, :8], values[3, :8] = np.nan, -np.inf
    values[4], values[5] = np.nan, 0
    values[6, :8] = np.finfo(np.float32).smallest_subnormal
    table, updated, again = make("int8"), make("int8"), make("int8")
    table.load(ids, values)
    updated.push(ids, -np.nan_to_num(values, posinf=0, neginf=0), 1.0, 1)
    for each in (table, updated):
        once = rows(each, ids)
        again.load(ids, once)
        assert rows(again, ids).tobytes() == once.tobytes()
        # One step in this row is up to a 64th of the largest value, and 2^-126 at least.
        finite = np.where(np.isfinite(values), values.astype(np.float64), 0)
        off = np.where(np.isfinite(values), once - finite, 0)
        assert (
            np.abs(off) <= np.maximum(np.abs(finite).max(1, keepdims=True) / 63.5, 2.0**-126)
        ).all()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinity_become_nan_and_leave_the_rest_of_a_row_of_8_bits() -> None:
    values = np.random.default_rng(1).standard_normal((100, 16), np.float32)
    bad = values.copy()
    bad[:, 15] = np.tile(np.float32([np.nan, np.inf, -np.inf, np.nan]), 25)
    values[:, 15] = 0
    ids = np.arange(100)
    table, good = make("int8"), make("int8")
    table.load(ids, bad)
    good.load(ids, values)
    for step in (1, 2):
        assert np.isnan(rows(table, ids)[:, 15]).all()
        assert rows(table, ids)[:, :15].tobytes() == rows(good, ids)[:, :15].tobytes()
        gradient = np.full((100, 16), 1e-2, np.float32)
        gradient[:, 15] = 0
        for each in (table, good):
            each.push(ids, gradient, 1.0, step)


def test_shorter_rows_take_less_memory() -> None:
    def grown(dtype: str, kind: str) -> int:
        table = make(dtype, 64, kind)
        table.pull(np.arange(100_000))
        return table.bytes

    assert grown("bf16", "sgd") < 0.66 * grown("fp32", "sgd")
    assert grown("fp16", "adagrad") < 0.8 * grown("fp32", "adagrad")
    assert grown("int8", "sgd") < 0.4 * grown("fp32", "sgd")
    assert grown("int8", "adagrad") < 0.7 * grown("fp32", "adagrad")


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype fp8: expected fp32, bf16, fp16 or int8"):
        make("fp8")

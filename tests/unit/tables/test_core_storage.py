"""Tables that keep their rows in 16 bits: what is rounded, how, and what stays exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.tables.core_tables import core_table, rows
from torch_edl import _core

pytestmark = pytest.mark.usefixtures("storage")

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
IDS = np.arange(-50, 3_950)


def make(dtype: str, dim: int = 16, kind: str = "sgd", start: float = 0.0) -> _core.Table:
    rate = {"lr": 1.0} if kind == "sgd" else {"lr": 0.1}
    optimizer = _core.Optimizer(kind, rate)
    return core_table("t", dim, "constant", {"value": start}, 7, optimizer, dtype=dtype)


def kept(values: np.ndarray, dtype: str) -> np.ndarray:
    """Whether each float32 value is a number of the type."""
    return np.asarray(torch.from_numpy(values.copy()).to(SHORT[dtype]).float().numpy() == values)


def spread(dtype: str, shape: tuple[int, int]) -> np.ndarray:
    """Values of all sizes, down to a tenth of the smallest step and up to the largest number."""
    rng = np.random.default_rng(3)
    low, high = (-30, 15.9) if dtype == "fp16" else (-120, 127.9)
    signs = rng.choice([-1.0, 1.0], shape)
    return np.asarray(signs * 2.0 ** rng.uniform(low, high, shape), np.float32)


@pytest.mark.parametrize("dtype", SHORT)
def test_an_update_rounds_to_one_of_the_two_nearest_numbers(dtype: str) -> None:
    table, wanted = make(dtype), spread(dtype, (len(IDS), 16))
    table.push(IDS, -wanted, 1.0, 1)  # from zero, at a rate of 1
    found = rows(table, IDS)
    assert kept(found, dtype).all()
    # A unit in the last place below the wanted value; of subnormal numbers, the smallest number.
    digits, least = (10, 2.0**-24) if dtype == "fp16" else (7, 2.0**-133)
    step = np.maximum(2.0 ** (np.floor(np.log2(np.abs(wanted))) - digits), least)
    off = found.astype(np.float64) - wanted
    assert (np.abs(off) < step).all()
    exact = kept(wanted, dtype)
    assert (off[exact] == 0).all()


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("size", [1.0, 2.0**-16])
def test_the_mean_of_what_is_kept_is_the_value(dtype: str, size: float) -> None:
    step = {"bf16": 2.0**-7, "fp16": 2.0**-10}[dtype] * size
    if dtype == "fp16" and size < 2.0**-14:
        step = 2.0**-24
    for part in (0.125, 0.5, 0.9375):
        table = make(dtype)
        table.push(IDS, np.full((len(IDS), 16), -(size + part * step), np.float32), 1.0, 1)
        found = (rows(table, IDS).astype(np.float64) - size) / step
        assert set(np.unique(found)) == {0.0, 1.0}
        error = (part * (1 - part) / found.size) ** 0.5
        assert abs(found.mean() - part) < 5 * error


@pytest.mark.parametrize("dtype", SHORT)
def test_updates_smaller_than_a_step_are_not_lost(dtype: str) -> None:
    table, ids = make(dtype, start=1.0), IDS[:500]
    gradient = np.full((500, 16), 1e-4, np.float32)
    for step in range(1, 1001):
        table.push(ids, gradient, 1.0, step)
    found = rows(table, ids)
    assert abs(found.mean() - 0.9) < 0.002
    nearest = torch.ones(1, dtype=SHORT[dtype])
    for _ in range(1000):
        nearest -= 1e-4  # as without chance: all of them are lost
    assert float(nearest) == 1.0


@pytest.mark.parametrize("dtype", SHORT)
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


@pytest.mark.parametrize("dtype", SHORT)
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
    np.testing.assert_allclose(copies[0][1], copies[1][1], rtol=2.0**-7)
    again = make(dtype, 3, "adagrad")
    order = np.argsort(ids)
    again.load(ids[order], *copies[0][::-1], last_used[order], count[order])
    for each in (table, again):
        each.push(IDS, gradient, 0.1, 2)
    assert rows(table, IDS).tobytes() == rows(again, IDS).tobytes()
    scanned, vectors, _ = again.scan(0, 10_000)
    assert vectors[np.argsort(scanned)].tobytes() == rows(again, IDS).tobytes()


@pytest.mark.parametrize("dtype", SHORT)
def test_a_row_starts_the_same_whether_it_is_made_or_not(dtype: str) -> None:
    table = core_table("t", 5, "normal", {"std": 1.0}, 7, _core.Optimizer("sgd", {}), dtype=dtype)
    seen = rows(table, IDS, read_only=True)
    assert table.size == 0
    assert rows(table, IDS, read_only=False).tobytes() == seen.tobytes()
    whole = _core.init_rows("t", 7, "normal", {"std": 1.0}, IDS, 5)
    assert seen.tobytes() == torch.from_numpy(whole).to(SHORT[dtype]).float().numpy().tobytes()


@pytest.mark.parametrize("dtype", SHORT)
def test_rows_travel_as_they_lie(dtype: str) -> None:
    table = make(dtype, start=0.3)
    table.push(IDS, np.random.default_rng(1).standard_normal((len(IDS), 16), np.float32), 0.1, 1)
    (sent,) = _core.pull_tables([(table, IDS.tobytes())], dtype)
    read = torch.from_numpy(sent.view(np.int16)).view(SHORT[dtype]).float().numpy()
    assert read.tobytes() == rows(table, IDS).tobytes()
    other = {"bf16": "fp16", "fp16": "bf16"}[dtype]
    (sent,) = _core.pull_tables([(table, IDS.tobytes())], other)
    wanted = torch.from_numpy(rows(table, IDS)).to(SHORT[other])
    assert sent.tobytes() == wanted.view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("dtype", SHORT)
def test_a_finite_row_stays_finite(dtype: str) -> None:
    largest = float(torch.finfo(SHORT[dtype]).max)
    table = make(dtype)
    table.push(IDS, np.full((len(IDS), 16), -largest * 1.001, np.float32), 1.0, 1)
    assert np.unique(rows(table, IDS)).tolist() == [largest]


def test_rows_of_16_bits_take_less_memory() -> None:
    def grown(dtype: str, kind: str) -> int:
        table = make(dtype, 64, kind)
        table.pull(np.arange(100_000))
        return table.bytes

    assert grown("bf16", "sgd") < 0.66 * grown("fp32", "sgd")
    assert grown("fp16", "adagrad") < 0.8 * grown("fp32", "adagrad")


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype int8: expected fp32, bf16 or fp16"):
        make("int8")

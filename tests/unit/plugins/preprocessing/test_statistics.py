"""Statistics merge in any order, and are what one pass by numpy, pandas or Python gives."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_edl.errors import UsageError
from torch_edl.plugins.preprocessing.statistic import QuantileSketch
from torch_edl.plugins.preprocessing.steps import Quantiles
from torch_edl.preprocessing import Columns, column

CELLS = 4096
COLUMNS = Columns(
    ids=[column("text").vocabulary(6, min_count=2), column("x").bucketize(quantiles=3)],
    dense=[column("x").normalize(), column("x").log().normalize()],
)

finite = st.floats(width=64, min_value=-1e300, max_value=1e300)
records = st.lists(
    st.tuples(st.none() | st.text("ab", max_size=2), st.none() | finite), max_size=12
)


def table(rows: list[tuple[str | None, float | None]]) -> pa.Table:
    return pa.table(
        {
            "text": pa.array([row[0] for row in rows], pa.string()),
            "x": pa.array([row[1] for row in rows], pa.float64()),
        }
    )


def observed(rows: list[tuple[str | None, float | None]]) -> bytes:
    statistics = COLUMNS.statistics()
    statistics.observe(table(rows))
    return statistics.to_bytes()


def fitted(*parts: bytes) -> bytes:
    """Return the statistics of the parts, merged in their order."""
    statistics = COLUMNS.statistics()
    for part in parts:
        statistics.merge(part)
    return Columns.from_spec(COLUMNS.spec).finish(statistics).to_bytes()


def merged(*parts: bytes) -> bytes:
    statistics = COLUMNS.statistics()
    for part in parts:
        statistics.merge(part)
    return statistics.to_bytes()


@given(st.lists(records, min_size=3, max_size=3))
@settings(deadline=None, max_examples=60)
def test_any_order_and_any_grouping_of_merges_fits_the_same_bits(
    parts: list[list[tuple[str | None, float | None]]],
) -> None:
    a, b, c = (observed(part) for part in parts)
    whole = fitted(observed([row for part in parts for row in part]))
    for order in itertools.permutations((a, b, c)):
        assert fitted(*order) == whole
    assert fitted(merged(a, b), c) == fitted(a, merged(b, c)) == whole
    assert fitted(a, observed([]), b, c) == whole


@given(st.lists(st.floats(width=64, allow_nan=False, allow_infinity=False), max_size=30))
@settings(deadline=None, max_examples=100)
def test_moments_are_those_of_exact_fractions(values: list[float]) -> None:
    columns = Columns(x=column("x").normalize()).fit({"x": np.array(values)})
    scale = columns.fitted("x")
    if not values:
        assert (scale.mean, scale.std) == (0.0, 0.0)
        return
    mean = sum(map(Fraction, values)) / len(values)
    variance = sum((Fraction(value) - mean) ** 2 for value in values) / len(values)
    assert scale.mean == float(mean)
    if 0 < variance < Fraction(2) ** 1000:
        assert scale.std == pytest.approx(math.sqrt(variance), rel=1e-15)


def test_the_variance_of_large_numbers_near_each_other_is_not_lost() -> None:
    values = 1e9 + np.arange(1000) / 1024
    scale = Columns(x=column("x").normalize()).fit({"x": values}).fitted("x")
    assert scale.std == pytest.approx((np.arange(1000) / 1024).std(), rel=1e-14)


def test_numbers_of_any_size_have_a_standard_deviation() -> None:
    for value in (1.7e308, 5e-324):
        scale = Columns(x=column("x").normalize()).fit({"x": [value, -value]}).fitted("x")
        assert (scale.mean, scale.std) == (0.0, value)


def test_infinity_cannot_be_normalized() -> None:
    with pytest.raises(UsageError, match=r"column 'x': 1 infinite"):
        Columns(x=column("x").normalize()).fit({"x": [1.0, math.inf]})


@given(st.lists(finite, min_size=1, max_size=60), st.integers(2, 9))
@settings(deadline=None, max_examples=80)
def test_quantiles_of_few_distinct_numbers_are_exact(values: list[float], count: int) -> None:
    columns = Columns(x=column("x").bucketize(quantiles=count)).fit({"x": np.array(values)})
    found = columns.fitted("x")
    ranks = [-(-len(values) * k // count) - 1 for k in range(1, count)]
    assert found.values.tolist() == sorted({sorted(values)[rank] for rank in ranks})
    assert found.relative_error == 0


@pytest.mark.parametrize("kind", ["lognormal", "normal", "uniform", "near each other", "all sizes"])
def test_quantiles_of_many_numbers_keep_the_proven_bound(kind: str) -> None:
    rng = np.random.default_rng(0)
    n = 50_000
    values = {
        "lognormal": rng.lognormal(0, 2, n),
        "normal": rng.standard_normal(n),
        "uniform": rng.random(n),
        "near each other": 1e9 + rng.random(n),
        "all sizes": rng.choice([-1, 1], n) * 2.0 ** rng.uniform(-1000, 1000, n),
    }[kind]
    whole = QuantileSketch(Quantiles(count=100, cells=CELLS))
    whole.observe(values, "x")
    found = whole.finish()
    exact = np.quantile(values, np.arange(1, 100) / 100, method="inverted_cdf")
    assert len(found.values) == 99
    assert (np.abs(found.values - exact) <= found.relative_error * np.abs(exact)).all()
    assert 0 < found.relative_error <= (1.0 if kind == "all sizes" else 0.01)
    assert len(whole.arrays()["cells"]) <= CELLS
    # The same by parts: each coarsens its cells by itself, and no more than all have to.
    merged = QuantileSketch(Quantiles(count=100, cells=CELLS))
    for part in np.array_split(values, 7):
        one = QuantileSketch(Quantiles(count=100, cells=CELLS))
        one.observe(part, "x")
        merged.merge(one.arrays(), "x")
    for key, array in whole.arrays().items():
        assert (merged.arrays()[key] == array).all()


@given(st.lists(st.none() | st.text(max_size=3), max_size=40), st.integers(1, 3))
@settings(deadline=None, max_examples=80)
def test_a_vocabulary_is_the_most_frequent_values(values: list[str | None], least: int) -> None:
    columns = Columns(x=column("x").vocabulary(5, min_count=least))
    columns.fit({"x": pa.array(values, pa.string())})
    counts = Counter(value.encode() for value in values if value is not None)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    wanted = [item for item in ranked if item[1] >= least][:4]
    words = columns.fitted("x")
    assert list(zip(words.values, words.counts.tolist(), strict=True)) == wanted
    assert words.total == sum(counts.values())


def test_more_distinct_values_than_can_be_counted_are_an_error_that_names_the_way_out() -> None:
    columns = Columns(x=column("x").vocabulary(10, distinct=5))
    columns.fit({"x": list("abcde")})
    with pytest.raises(UsageError, match=r"column 'x': more than 5 distinct .* hash\(buckets\)"):
        columns.fit([{"x": list("abc")}, {"x": list("def")}])


def test_statistics_of_other_columns_are_rejected() -> None:
    other = Columns(y=column("x").normalize()).statistics()
    for content in (other.to_bytes(), b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}"):
        with pytest.raises(UsageError, match="statistics of other columns"):
            COLUMNS.statistics().merge(content)


def test_damaged_offsets_are_rejected() -> None:
    columns = Columns(x=column("x").vocabulary(10))
    statistics = columns.statistics()
    statistics.observe({"x": ["a", "bb"]})
    content = statistics.to_bytes()
    offsets = np.array([0, 1, 3]).tobytes()
    damaged = content.replace(offsets, np.array([0, 1, 99]).tobytes())
    assert damaged != content
    with pytest.raises(UsageError, match="offset"):
        columns.statistics().merge(damaged)


def same(a: Any, b: Any) -> bool:
    return bool((np.asarray(a) == np.asarray(b)).all())


def test_the_order_of_records_in_a_job_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    rows = table(
        list(zip(map(str, rng.zipf(1.5, 5000) % 50), rng.standard_normal(5000), strict=True))
    )
    one = Columns.from_spec(COLUMNS.spec).fit(rows)
    parts = [rows.slice(start, 500) for start in range(0, 5000, 500)]
    other = Columns.from_spec(COLUMNS.spec).fit(reversed(parts))
    assert one.to_bytes() == other.to_bytes()
    made = one(rows)
    assert same(made["ids"], other(rows)["ids"])
    assert made["dense"][:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert made["dense"].std(0) == pytest.approx([1, 1], abs=1e-5)

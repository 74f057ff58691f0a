"""The statistics of a column, which tasks compute and which merge exactly, in any order.

Each statistic is a commutative monoid: an empty one changes nothing, and a merge of parts equals,
bit for bit, one pass over all records. So the fit depends neither on the number of workers nor on
the order in which tasks end.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.plugins.preprocessing import arrays
from torch_edl.plugins.preprocessing.arrays import Values, numbers, texts
from torch_edl.plugins.preprocessing.column import Column
from torch_edl.plugins.preprocessing.steps import (
    Arrays,
    Boundaries,
    ColumnStep,
    Fitted,
    Normalize,
    Quantiles,
    Scale,
    Vocabulary,
    Words,
)

MOST_TEXT_BYTES = 1 << 30
"""Largest total size of the distinct values of one column, bytes."""


class Moments:
    """Count, sum and sum of squares without rounding, as integers scaled by powers of two."""

    _BITS = 1074
    """Fractional bits of the sum; the squares have twice as many."""
    _ROOT_BITS = 64

    def __init__(self, step: Normalize) -> None:
        self._count = self._sum = self._squares = 0

    def observe(self, values: Values, name: str) -> None:
        count, infinite, total, squares = _core.exact_sums(numbers(values, name))
        if infinite:
            raise UsageError(f"column {name!r}: {infinite:,} infinite numbers cannot be normalized")
        self._add(count, total, squares)

    def _add(self, count: int, total: bytes, squares: bytes) -> None:
        self._count += count
        self._sum += int.from_bytes(total, "little", signed=True)
        self._squares += int.from_bytes(squares, "little", signed=True)

    def merge(self, arrays: Arrays, name: str) -> None:
        self._add(int(arrays["count"][0]), arrays["sum"].tobytes(), arrays["squares"].tobytes())

    @property
    def nbytes(self) -> int:
        return (self._sum.bit_length() + self._squares.bit_length()) // 8

    def arrays(self) -> Arrays:
        return {
            "count": np.array([self._count]),
            "sum": _signed(self._sum),
            "squares": _signed(self._squares),
        }

    def finish(self) -> Scale:
        n, total = self._count, self._sum
        if n == 0:
            return Scale(0.0, 0.0)
        # The root is taken before the division, since the variance may exceed the range of a float.
        root = math.isqrt((n * self._squares - total * total) << 2 * self._ROOT_BITS)
        std = Fraction(root, n << self._BITS + self._ROOT_BITS)
        return Scale(float(Fraction(total, n << self._BITS)), float(std))


def _signed(value: int) -> npt.NDArray[np.uint8]:
    size = value.bit_length() // 8 + 1
    return np.frombuffer(value.to_bytes(size, "little", signed=True), np.uint8)


class QuantileSketch:
    """Counts of numbers per cell; cells are exact until there are too many of them.

    A number is represented by its 64 bits, mapped so that they have the order of the numbers,
    without the lowest ``level`` bits. The level is the lowest one at which there are at most
    ``cells`` cells, so it depends only on the set of numbers. Parts have the same level or a lower
    one, and are converted to the level of the whole. A quantile is taken from the cell of the exact
    quantile, so its relative error is below ``2 ** (level - 52)``: 0 with up to ``cells`` distinct
    numbers, about 1e-4 for a few decades of magnitude with 65,536 cells, and 1/16 at worst for
    doubles of all magnitudes.
    """

    def __init__(self, step: Quantiles) -> None:
        self._count, self._most = step.count, step.cells
        self._level = 0
        self._cells = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)

    def observe(self, values: Values, name: str) -> None:
        found = numbers(values, name).astype(np.float64, copy=False)
        missing = np.isnan(found)
        if missing.any():
            found = found[~missing]
        cells = np.sort(_rising(found) >> np.uint64(self._level))
        by = self._needed(cells)
        cells >>= np.uint64(by)
        first = _firsts(cells)
        self._add(self._level + by, cells[first], np.diff(first, append=len(cells)))

    def merge(self, arrays: Arrays, name: str) -> None:
        self._add(int(arrays["level"][0]), arrays["cells"], arrays["counts"])

    def _add(self, level: int, cells: npt.NDArray[Any], counts: npt.NDArray[Any]) -> None:
        self._coarsen(level - self._level)
        cells = cells >> np.uint64(self._level - level)
        if len(self._cells):
            cells = np.concatenate([self._cells, cells])
            counts = np.concatenate([self._counts, counts])
        self._cells, self._counts = _summed(cells, counts)
        self._coarsen(self._needed(self._cells))

    def _needed(self, cells: npt.NDArray[np.uint64]) -> int:
        """Return by how many bits sorted cells must be coarsened to stay within the limit."""

        def suffices(by: int) -> bool:
            coarse = cells >> np.uint64(by)
            return int(np.count_nonzero(coarse[1:] != coarse[:-1])) < self._most

        return 0 if len(cells) <= self._most else bisect.bisect_left(range(64), True, key=suffices)

    def _coarsen(self, by: int) -> None:
        if by > 0:
            self._level += by
            self._cells, self._counts = _added(self._cells >> np.uint64(by), self._counts)

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes + self._counts.nbytes

    def arrays(self) -> Arrays:
        return {"level": np.array([self._level]), "cells": self._cells, "counts": self._counts}

    def finish(self) -> Boundaries:
        """Return the boundaries of buckets with equally many numbers.

        For each k, the boundary is the smallest number at or below which there are at least k /
        count of the numbers, as in numpy's ``inverted_cdf``.
        """
        if not len(self._cells):
            return Boundaries(np.empty(0), 0.0)
        upto = np.cumsum(self._counts)
        total = int(upto[-1])
        ranks = np.array([-(-total * k // self._count) for k in range(1, self._count)], np.int64)
        cells = np.unique(self._cells[np.searchsorted(upto, ranks)])
        error = 2.0 ** (self._level - 52) if self._level else 0.0
        return Boundaries(_numbers(cells << np.uint64(self._level)), error)


def _summed(
    cells: npt.NDArray[Any], counts: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return each cell once, in ascending order, with the sum of its counts."""
    order = np.argsort(cells, kind="stable")
    return _added(cells[order], counts[order])


def _added(
    cells: npt.NDArray[Any], counts: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return the same as :func:`_summed`, for sorted cells."""
    first = _firsts(cells)
    return cells[first], np.add.reduceat(counts, first) if len(first) else counts


def _firsts(cells: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return the index of the first element of each cell, for sorted cells."""
    changes = np.ones(len(cells), np.bool_)
    np.not_equal(cells[1:], cells[:-1], out=changes[1:])
    return np.flatnonzero(changes)


_SIGN = np.uint64(1 << 63)


def _rising(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """Return numbers as integers in the same order; both zeros become one integer."""
    bits = (values + 0.0).view(np.int64)
    # Flips all bits of negative numbers, and the sign bit of the others.
    flipped = (bits >> 63).view(np.uint64)
    flipped |= _SIGN
    flipped ^= bits.view(np.uint64)
    return flipped


def _numbers(cells: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return the numbers of integers, the inverse of :func:`_rising`."""
    return np.where(cells & _SIGN, cells & ~_SIGN, ~cells).view(np.float64)


class ValueCounts:
    """Exact counts of all distinct values."""

    def __init__(self, step: Vocabulary) -> None:
        self._step = step
        self._counts = _core.TextCounts()

    def observe(self, values: Values, name: str) -> None:
        self._counts.add(texts(values, name))
        self._check(name)

    def merge(self, arrays: Arrays, name: str) -> None:
        offsets, data = arrays["offsets"], arrays["data"]
        found = _core.Texts(offsets, data, None, 0, len(offsets) - 1, True)
        self._counts.add(found, arrays["counts"])
        self._check(name)

    def _check(self, name: str) -> None:
        size, most = len(self._counts), self._step.distinct
        if size > most or self._counts.bytes > MOST_TEXT_BYTES:
            raise UsageError(
                f"column {name!r}: more than {min(size - 1, most):,} distinct values "
                f"({self._counts.bytes:,} bytes of text) are too many to be counted exactly; use "
                f"hash(buckets) for this column, or raise vocabulary(distinct={most})"
            )

    @property
    def nbytes(self) -> int:
        return self._counts.bytes + 16 * len(self._counts)

    def arrays(self) -> Arrays:
        offsets, data, counts = self._counts.all()
        return {"offsets": offsets, "data": np.frombuffer(data, np.uint8), "counts": counts}

    def finish(self) -> Words:
        step = self._step
        kept = self._counts.ranked(step.size - step.oov, step.min_count)
        return Words(*kept, total=np.array([self._counts.total]))


Statistic = Moments | QuantileSketch | ValueCounts
"""The statistic of one column. ``observe`` adds records; ``merge`` adds another statistic of the
step, given by its ``arrays()``; both raise UsageError if there are too many distinct values.
``nbytes`` is the size of the content without overhead; ``finish`` returns the result of the fit."""

_STATISTICS: Mapping[type[ColumnStep], Callable[[Any], Statistic]] = {
    Normalize: Moments,
    Quantiles: QuantileSketch,
    Vocabulary: ValueCounts,
}


def packed(parts: Mapping[str, Arrays], about: Mapping[str, str] | None = None) -> bytes:
    """Return the arrays of some columns, by their paths, as safetensors."""
    tensors = {
        f"{path}/{key}": np.ascontiguousarray(array)
        for path, part in parts.items()
        for key, array in part.items()
    }
    return bytes(save(tensors, None if about is None else dict(about)))


def unpacked(content: bytes) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Return the arrays by path of their column, the inverse of :func:`packed`."""
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, array in load(content).items():
        path, _, key = name.rpartition("/")
        found.setdefault(path, {})[key] = array
    return found


class Statistics:
    """The statistics of all fitted columns; :class:`~torch_edl.interfaces.FitStatistics` documents
    the methods. :meth:`~torch_edl.plugins.preprocessing.columns.Columns.statistics` makes them.

    Args:
        columns: columns with a fitted step, by their paths.
        parse: converts the output of a source to records with these columns.
        needed: names of all columns that training uses, fitted or not.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        parse: Callable[[Any], Any],
        *,
        needed: Sequence[str] = (),
    ) -> None:
        self._columns = columns
        self._needed = needed
        self._parse = parse
        self._of: dict[str, Statistic] = {
            path: _STATISTICS[type(each.fitted_step)](each.fitted_step)
            for path, each in columns.items()
            if each.fitted_step is not None
        }

    def observe(self, records: Any) -> None:
        parsed = self._parse(records)
        # Columns that are not fitted are checked too; otherwise training would fail after the pass.
        for name in self._needed:
            arrays.take(parsed, name)
        for path, each in self._columns.items():
            self._of[path].observe(each.observed(parsed), each.name)

    def merge(self, content: bytes) -> None:
        try:
            found = unpacked(content)
            if not found.keys() <= self._of.keys():
                raise KeyError(*found)
            for path, statistic in self._of.items():
                statistic.merge(found[path], self._columns[path].name)
        except UsageError:
            raise
        except (SafetensorError, KeyError, ValueError) as error:
            raise UsageError(f"statistics of other columns: {error!r}") from None

    @property
    def nbytes(self) -> int:
        return sum(statistic.nbytes for statistic in self._of.values())

    def to_bytes(self) -> bytes:
        return packed({path: statistic.arrays() for path, statistic in self._of.items()})

    def finish(self) -> dict[str, Fitted]:
        """Return the results of the fit, by the path of their column."""
        return {path: statistic.finish() for path, statistic in self._of.items()}

"""The steps that a column goes through, and the results of fitted steps: small values that are
saved with the model. A fitted step needs a statistic of the column."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.plugins.preprocessing.arrays import (
    Ids,
    Numbers,
    Values,
    integers,
    is_text,
    numbers,
    texts,
)

MOST_IDS = 1 << 62

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Scale:
    """The result of fitting a :class:`Normalize`."""

    mean: float
    std: float
    """Standard deviation of the population; 0: all values are equal, or there are none."""

    def arrays(self) -> Arrays:
        return {"mean": np.array([self.mean]), "std": np.array([self.std])}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Scale:
        return cls(float(arrays["mean"][0]), float(arrays["std"][0]))


@dataclass(frozen=True)
class Boundaries:
    """The result of fitting :class:`Quantiles`."""

    values: npt.NDArray[np.float64]
    """Boundaries in ascending order; fewer than requested if a value fills more than one bucket."""
    relative_error: float
    """Bound of the relative error of each boundary; 0: the quantiles are exact."""

    def arrays(self) -> Arrays:
        return {"boundaries": self.values, "relative_error": np.array([self.relative_error])}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Boundaries:
        return cls(arrays["boundaries"], float(arrays["relative_error"][0]))


class Words:
    """The result of fitting a :class:`Vocabulary`.

    Args:
        offsets: int64 (n + 1,), start of each value in ``data``.
        data: the concatenated values, UTF-8 or bytes.
        counts: int64 (n,), number of occurrences, in descending order.
        total: number of all values, including those outside of the vocabulary.
    """

    def __init__(self, offsets: Any, data: Any, counts: Any, total: Any) -> None:
        self.counts: npt.NDArray[np.int64] = counts
        self.total = int(total[0])
        self._offsets, self._data = offsets, data
        self._places = _core.TextCounts()
        self._places.add(
            _core.Texts(offsets, data, None, 0, len(offsets) - 1, True),
            np.ascontiguousarray(counts),
        )

    def find(self, texts: _core.Texts) -> npt.NDArray[np.int64]:
        """Return the rank of each text, from 0; -1: missing, or not in the vocabulary."""
        return self._places.find(texts)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def values(self) -> list[bytes]:
        """The values in the order of their rank."""
        data, offsets = bytes(self._data), self._offsets.tolist()
        return [data[a:b] for a, b in itertools.pairwise(offsets)]

    def arrays(self) -> Arrays:
        return {
            "offsets": self._offsets,
            "data": np.frombuffer(self._data, np.uint8),
            "counts": self.counts,
            "total": np.array([self.total]),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Words:
        return cls(arrays["offsets"], arrays["data"], arrays["counts"], arrays["total"])


Fitted = Scale | Boundaries | Words
"""The result of fitting one step. It is saved as the arrays of ``arrays()``."""


@dataclass(frozen=True, kw_only=True)
class ColumnStep(ABC):
    """One step."""

    name: ClassVar[str]
    gives_ids: ClassVar[bool] = False
    """True if the step makes int64 ids, after which no other step is possible."""
    result: ClassVar[Any] = None
    """Type of the fitted values of a step that needs a statistic of the column; None: it needs
    none."""

    @property
    def buckets(self) -> int:
        """Number of ids, which are 0 to ``buckets - 1``; 0: any int64."""
        return 0

    @abstractmethod
    def apply(self, values: Values, fitted: Any, name: str) -> Values:
        """Return the values after this step.

        Args:
            fitted: result of the statistic; None for steps that are not fitted.
            name: name of the column, for messages.
        """

    def spec(self) -> dict[str, Any]:
        """Return the step as values that JSON supports."""
        return {"step": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Fill(ColumnStep):
    """Replaces missing values (null, NaN) by a value."""

    name: ClassVar[str] = "fill"
    value: str | float

    def apply(self, values: Values, fitted: Any, name: str) -> Values:
        if isinstance(self.value, str):
            if isinstance(values, pa.Array) and pa.types.is_null(values.type):
                values = values.cast(pa.string())  # all values are missing
            if not is_text(values):
                raise UsageError(
                    f"column {name!r}: fill({self.value!r}) of numbers; fill them with a number"
                )
            return values.fill_null(pa.scalar(self.value).cast(values.type))
        if is_text(values):
            raise UsageError(
                f"column {name!r}: fill({self.value!r}) of texts; fill them with a text"
            )
        integral = isinstance(values, pa.Array) and pa.types.is_integer(values.type)
        if integral and float(self.value).is_integer():
            try:
                # The type of the column may be too small for the value, such as -1 in uint8.
                wide = values if values.type == pa.uint64() else values.cast(pa.int64())
                return wide.fill_null(int(self.value))
            except OverflowError:
                raise UsageError(
                    f"column {name!r}: fill({self.value!r}) is no {wide.type}"
                ) from None
        found = numbers(values, name)
        lacks = np.isnan(found)
        return np.where(lacks, found.dtype.type(self.value), found) if lacks.any() else found


@dataclass(frozen=True, kw_only=True)
class Missing(ColumnStep):
    """Replaces missing values by 1, and all others by 0."""

    name: ClassVar[str] = "missing"

    def apply(self, values: Values, fitted: Any, name: str) -> Values:
        if isinstance(values, pa.Array):
            return (
                values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False).astype(np.float32)
            )
        return np.isnan(numbers(values, name)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Log(ColumnStep):
    """Applies ``log(1 + x)``, and ``-log(1 - x)`` to negative numbers."""

    name: ClassVar[str] = "log"

    def apply(self, values: Values, fitted: Any, name: str) -> Numbers:
        found = numbers(values, name)
        if np.signbit(found).any():
            made: Numbers = np.copysign(np.log1p(np.abs(found)), found)
            return made
        return np.log1p(found)


@dataclass(frozen=True, kw_only=True)
class Normalize(ColumnStep):
    """Scales to mean 0 and variance 1 over all records that have a value."""

    name: ClassVar[str] = "normalize"
    result: ClassVar[Any] = Scale

    def apply(self, values: Values, fitted: Scale, name: str) -> Numbers:
        found = numbers(values, name)
        kind = found.dtype.type
        made: Numbers = (found - kind(fitted.mean)) * kind(1 / fitted.std if fitted.std else 1)
        return made


@dataclass(frozen=True, kw_only=True)
class Integers(ColumnStep):
    """Uses integers as ids without a change."""

    name: ClassVar[str] = "ids"
    gives_ids: ClassVar[bool] = True
    count: int = 0

    def __post_init__(self) -> None:
        _check(0 <= self.count <= MOST_IDS, f"ids({self.count}): the number of ids")

    @property
    def buckets(self) -> int:
        return self.count

    def apply(self, values: Values, fitted: Any, name: str) -> Ids:
        found, missing = integers(values, name)
        if missing is not None:
            raise UsageError(f"column {name!r}: {missing.sum():,} ids are missing; fill() them")
        if self.count and len(found) and (found.min() < 0 or found.max() >= self.count):
            wrong = found[(found < 0) | (found >= self.count)][0]
            raise UsageError(f"column {name!r}: id {wrong} is not in 0..{self.count - 1}")
        return found


@dataclass(frozen=True, kw_only=True)
class Hash(ColumnStep):
    """Hashes texts or integers with a seed to ids 0 to ``count - 1``; to any int64 if ``count`` is
    0."""

    name: ClassVar[str] = "hash"
    gives_ids: ClassVar[bool] = True
    count: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _check(0 <= self.count <= MOST_IDS, f"hash({self.count}): the number of buckets")
        _check(0 <= self.seed < 1 << 64, f"seed {self.seed}")

    @property
    def buckets(self) -> int:
        return self.count

    def apply(self, values: Values, fitted: Any, name: str) -> Ids:
        """Return the hashes of one column, or of the combined values of a list of columns."""
        parts = values if isinstance(values, list) else [values]
        hashes = np.array([self.seed], np.uint64)
        for part in parts:
            if is_text(part):
                hashes = _core.hash_texts(texts(part, name), hashes)
            else:
                hashes = _core.hash_integers(*integers(part, name), hashes)
        return _core.to_buckets(hashes, self.count) if self.count else hashes.view(np.int64)


@dataclass(frozen=True, kw_only=True)
class Vocabulary(ColumnStep):
    """Maps the most frequent values to ids by rank, after ``oov`` ids for all other values."""

    name: ClassVar[str] = "vocabulary"
    gives_ids: ClassVar[bool] = True
    result: ClassVar[Any] = Words
    size: int
    min_count: int = 1
    oov: int = 1
    distinct: int = 4_000_000

    def __post_init__(self) -> None:
        _check(self.oov >= 1, f"vocabulary(oov={self.oov}): the ids of unknown values")
        _check(
            self.oov < self.size <= MOST_IDS,
            f"vocabulary({self.size}): the number of ids, {self.oov} of them for unknown values,",
        )
        _check(self.min_count >= 1, f"vocabulary(min_count={self.min_count})")
        _check(self.distinct >= 1, f"vocabulary(distinct={self.distinct})")

    @property
    def buckets(self) -> int:
        return self.size

    def apply(self, values: Values, fitted: Words, name: str) -> Ids:
        found = texts(values, name)
        places = fitted.find(found)
        known = places >= 0
        if known.all():
            return places + self.oov
        unknown: Ids | int = 0
        if self.oov > 1:
            seeds = np.zeros(1, np.uint64)
            unknown = _core.to_buckets(_core.hash_texts(found, seeds), self.oov - 1) + 1
            if isinstance(values, pa.Array) and values.null_count:
                unknown[values.is_null().to_numpy(zero_copy_only=False)] = 0
        return np.where(known, places + self.oov, unknown)


@dataclass(frozen=True, kw_only=True)
class Bucketize(ColumnStep):
    """Maps numbers to ids by boundaries: 0 for a missing number, 1 below the first boundary."""

    name: ClassVar[str] = "bucketize"
    gives_ids: ClassVar[bool] = True
    boundaries: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(float(each) for each in self.boundaries))
        rising = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if not self.boundaries or not rising or not all(map(math.isfinite, self.boundaries)):
            raise UsageError(
                f"bucketize({list(self.boundaries)}): expected boundaries that rise, for example "
                "bucketize([1, 5, 20]), or bucketize(quantiles=10)"
            )

    @property
    def buckets(self) -> int:
        return len(self.boundaries) + 2

    def apply(self, values: Values, fitted: Any, name: str) -> Ids:
        return bucket_of(numbers(values, name), np.asarray(self.boundaries))


@dataclass(frozen=True, kw_only=True)
class Quantiles(ColumnStep):
    """Maps numbers to buckets of about equally many records: 0 for a missing number, 1 the
    lowest."""

    name: ClassVar[str] = "quantiles"
    gives_ids: ClassVar[bool] = True
    result: ClassVar[Any] = Boundaries
    count: int
    cells: int = 1 << 16

    def __post_init__(self) -> None:
        _check(2 <= self.count <= 1 << 20, f"bucketize(quantiles={self.count})")
        _check(1 << 12 <= self.cells <= 1 << 24, f"bucketize(cells={self.cells})")

    @property
    def buckets(self) -> int:
        return self.count + 1

    def apply(self, values: Values, fitted: Boundaries, name: str) -> Ids:
        return bucket_of(numbers(values, name), fitted.values)


def bucket_of(values: Numbers, boundaries: Numbers) -> Ids:
    """Return 0 for NaN, else 1 plus the number of boundaries below the value, as in
    torch.bucketize."""
    # Both arrays have one type; otherwise numpy would search in a converted copy.
    found = np.searchsorted(boundaries, values.astype(np.float64, copy=False), side="left")
    found += 1
    found[np.isnan(values)] = 0
    return found.astype(np.int64, copy=False)


def _check(good: bool, what: str) -> None:
    if not good:
        raise UsageError(f"{what} is out of range")


STEPS: Mapping[str, type[ColumnStep]] = {
    kind.name: kind
    for kind in (
        Fill, Missing, Log, Normalize, Integers, Hash, Vocabulary, Bucketize, Quantiles
    )
}  # fmt: skip
"""All steps by their name in a declaration."""

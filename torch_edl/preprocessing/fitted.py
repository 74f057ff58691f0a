"""What a fitted step knows once all records were seen: small, and saved with the model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from torch_edl import _core

Arrays = Mapping[str, npt.NDArray[Any]]


class Fitted(Protocol):
    """What was fitted for one step."""

    def arrays(self) -> Arrays:
        """As it is saved."""
        ...


@dataclass(frozen=True)
class Scale:
    """Of a :class:`~torch_edl.preprocessing.steps.Normalize`."""

    mean: float
    std: float
    """Of the population; 0: all values are equal, or there are none."""

    def arrays(self) -> Arrays:
        return {"mean": np.array([self.mean]), "std": np.array([self.std])}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Scale:
        return cls(float(arrays["mean"][0]), float(arrays["std"][0]))


@dataclass(frozen=True)
class Boundaries:
    """Of :class:`~torch_edl.preprocessing.steps.Quantiles`."""

    values: npt.NDArray[np.float64]
    """Rising; fewer than asked for where one value is more frequent than a bucket is large."""
    relative_error: float
    """Each is within this part of itself of the exact quantile; 0: it is the exact quantile."""

    def arrays(self) -> Arrays:
        return {"boundaries": self.values, "relative_error": np.array([self.relative_error])}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Boundaries:
        return cls(arrays["boundaries"], float(arrays["relative_error"][0]))


class Words:
    """Of a :class:`~torch_edl.preprocessing.steps.Vocabulary`: values by rank, with their counts.

    Args:
        offsets: int64 (n + 1,), where each value begins in ``data``.
        data: the values, one after the other, UTF-8 or bytes.
        counts: int64 (n,), falling.
        total: of all values, also those that are not in the vocabulary.
    """

    _KEYS: ClassVar = ("offsets", "data", "counts", "total")

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
        """The rank of each, from 0; -1: not in the vocabulary, or missing."""
        return self._places.find(texts)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def values(self) -> list[bytes]:
        """The values by rank."""
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
        return cls(*(arrays[key] for key in cls._KEYS))

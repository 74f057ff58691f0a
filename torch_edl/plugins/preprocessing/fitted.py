"""The results of fitted steps: small values that are saved with the model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from torch_edl import _core

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Scale:
    """The result of fitting a :class:`~torch_edl.plugins.preprocessing.steps.Normalize`."""

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
    """The result of fitting :class:`~torch_edl.plugins.preprocessing.steps.Quantiles`."""

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
    """The result of fitting a :class:`~torch_edl.plugins.preprocessing.steps.Vocabulary`.

    Args:
        offsets: int64 (n + 1,), start of each value in ``data``.
        data: the concatenated values, UTF-8 or bytes.
        counts: int64 (n,), number of occurrences, in descending order.
        total: number of all values, including those outside of the vocabulary.
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
        return cls(*(arrays[key] for key in cls._KEYS))


Fitted = Scale | Boundaries | Words
"""The result of fitting one step. It is saved as the arrays of ``arrays()``."""

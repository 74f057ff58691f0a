"""The statistics of all fitted columns, which tasks compute and a job merges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from torch_edl.errors import UsageError
from torch_edl.plugins.preprocessing import arrays
from torch_edl.plugins.preprocessing.column import Column
from torch_edl.plugins.preprocessing.fitted import Fitted
from torch_edl.plugins.preprocessing.statistic import Histogram, Moments, Statistic, ValueCounts
from torch_edl.plugins.preprocessing.steps import ColumnStep, Normalize, Quantiles, Vocabulary

_STATISTICS: Mapping[type[ColumnStep], Callable[[Any], Statistic]] = {
    Normalize: Moments,
    Quantiles: Histogram,
    Vocabulary: ValueCounts,
}


class Statistics:
    """Statistics of observed or merged records; the result is the same bits in any order.

    :meth:`~torch_edl.plugins.preprocessing.Columns.statistics` creates them.

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
        """Add records.

        Raises:
            UsageError: a column is missing or has another type, or has too many distinct values.
        """
        parsed = self._parse(records)
        # Columns that are not fitted are checked too; otherwise training would fail after the pass.
        for name in self._needed:
            arrays.take(parsed, name)
        for path, each in self._columns.items():
            self._of[path].observe(each.observed(parsed), each.name)

    def merge(self, content: bytes) -> None:
        """Add the records of other statistics, given by their :meth:`to_bytes`.

        Raises:
            UsageError: the content belongs to other columns, or there are too many distinct values
                now.
        """
        found: dict[str, dict[str, Any]] = {path: {} for path in self._of}
        try:
            for key, array in load(content).items():
                path, _, part = key.rpartition("/")
                found[path][part] = array
            for path, statistic in self._of.items():
                statistic.merge(found[path], self._columns[path].name)
        except UsageError:
            raise
        except (SafetensorError, KeyError, ValueError) as error:
            raise UsageError(f"statistics of other columns: {error!r}") from None

    @property
    def nbytes(self) -> int:
        """Size of the content in bytes, without overhead."""
        return sum(statistic.nbytes for statistic in self._of.values())

    def to_bytes(self) -> bytes:
        """Return the complete content as safetensors."""
        return bytes(
            save(
                {
                    f"{path}/{key}": np.ascontiguousarray(array)
                    for path, statistic in self._of.items()
                    for key, array in statistic.arrays().items()
                }
            )
        )

    def finish(self) -> dict[str, Fitted]:
        """Return the results of the fit, by the path of their column."""
        return {path: statistic.finish() for path, statistic in self._of.items()}

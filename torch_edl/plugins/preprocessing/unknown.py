"""Measures the share of values that the vocabularies of a loaded model lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch_edl.plugins.preprocessing.arrays import length, texts
from torch_edl.plugins.preprocessing.column import Column
from torch_edl.plugins.preprocessing.fitted import Fitted, Words
from torch_edl.plugins.preprocessing.steps import Missing

RECORDS = 1000
"""Number of records that are examined."""

_MANY = 0.01


class UnknownValues:
    """Counts values of the first records that no vocabulary has, and reports them once.

    Args:
        say: called with a text for each column of which at least 1 % of the values are unknown.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._records = 0
        # Numbers of values and of unknown values, by path.
        self._counts: dict[str, tuple[int, int]] = {}

    def observe(
        self,
        columns: Iterable[tuple[str, Column]],
        records: Any,
        fitted: Mapping[str, Fitted],
    ) -> bool:
        """Count the values of some records, and return True if more records must be examined."""
        seen, names = 0, {}
        for path, each in columns:
            words = fitted.get(path)
            if not isinstance(words, Words):
                continue
            found = each.observed(records)
            seen, missing = length(found), int(Missing().apply(found, None, each.name).sum())
            lacks = int((words.find(texts(found, each.name)) < 0).sum()) - missing
            values, unknown = self._counts.get(path, (0, 0))
            self._counts[path] = values + seen - missing, unknown + lacks
            names[path] = each.name
        if not names:
            return False
        self._records += seen
        if self._records < RECORDS:
            return True
        for path, (values, unknown) in self._counts.items():
            if unknown >= _MANY * values and unknown:
                self._say(
                    f"preprocessing: {unknown / values:.0%} of the values of column "
                    f"{names[path]!r} in the first {self._records:,} records are not in the "
                    "vocabulary of the loaded model, and share its ids of unknown values; "
                    "hash() the column where new values matter, or train without --load"
                )
        return False

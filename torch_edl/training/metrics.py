"""Metrics of a training loop. Each batch counts once, even if it is computed several times."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch_edl.errors import UsageError

log = logging.getLogger(__name__)

# Number of values per name before they are summed, which limits memory if no means are read.
_KEPT = 1000


class Meter:
    """Means of logged values by name, weighted by records.

    Logged values count when the update of their batch is settled. Tensors are read when the means
    are read, or after 1000 values, so that logging does not wait for a GPU.

    Args:
        warns: log a warning at the first ``loss`` that is not finite. Must be False in a job with a
            master, which logs this warning itself.
    """

    def __init__(self, *, warns: bool = False) -> None:
        self._warns = warns
        self._open: list[tuple[str, Any, int]] = []
        self._records = 0
        self._kept: dict[str, list[tuple[Any, int]]] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self.newest: dict[str, Any] = {}
        """Values of the newest update that counts, by name: numbers, or tensors of one number."""

    def open(self, records: int) -> None:
        """Begin a batch of ``records`` records; values of a batch with 0 records are ignored."""
        self._records = records

    def note(self, values: Mapping[str, Any]) -> None:
        """Log values of the current batch: numbers, or tensors of one number.

        Raises:
            UsageError: a value is neither a number nor a tensor of one number.
        """
        for name, value in values.items():
            self._open.append((name, _checked(name, value), self._records))

    def settle(self, *, counted: bool) -> None:
        """End an update: count the values logged since the previous update, or drop them."""
        if counted:
            self.newest = {name: value for name, value, records in self._open if records}
            for name, value, records in self._open:
                if records:
                    self._kept.setdefault(name, []).append((value, records))
                    if len(self._kept[name]) >= _KEPT:
                        self._fold(name)
        self._open.clear()

    def take(self) -> dict[str, float]:
        """Return the means of the values since the last call, by name. If there are no values, the
        mean of any name is NaN."""
        means = {name: total / records for name, (total, records) in self.totals().items()}
        return means or defaultdict(lambda: math.nan)

    def totals(self) -> dict[str, tuple[float, int]]:
        """Return the sum of value times records and the number of records, by name, since the last
        call of this method or of :meth:`take`."""
        for name in self._kept:
            self._fold(name)
        sums, self._sums = self._sums, {}
        return sums

    def _fold(self, name: str) -> None:
        total, records = self._sums.get(name, (0.0, 0))
        for value, weight in self._kept[name]:
            total += float(value) * weight
            records += weight
        if self._warns and name == "loss" and not math.isfinite(total):
            self._warns = False
            log.warning("the loss is %s; lower the learning rate, or look at the data", total)
        if records:
            self._sums[name] = total, records
        self._kept[name].clear()


def _checked(name: str, value: Any) -> Any:
    """Return a value that ``float`` accepts later, in any thread. A tensor is not read.

    Raises:
        UsageError: the value is neither a number nor a tensor of one number.
    """
    if hasattr(value, "detach"):  # a tensor of torch
        if value.numel() == 1:
            return value.detach()
        found = f"a tensor of shape {tuple(value.shape)}"
    else:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            found = f"{value!r:.60}"
    raise UsageError(f"log({name}=...): {found}; give a number, or a tensor of one number")

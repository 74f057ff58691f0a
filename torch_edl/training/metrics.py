"""Metrics of a training loop that count each batch once, however often it is tried."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch_edl.errors import UsageError

log = logging.getLogger(__name__)

# Values that are kept as they came: a script may log for days and never ask for the means.
_KEPT = 1000


class Meter:
    """Means by name, weighted by records.

    What is noted waits until the update of its batch is settled. Tensors are read only when the
    means are asked for, so a GPU is not waited for in between.

    Args:
        warns: log a warning at the first ``loss`` that is not finite; where there is a master, it
            warns.
    """

    def __init__(self, *, warns: bool = False) -> None:
        self._warns = warns
        self._open: list[tuple[str, Any, int]] = []
        self._records = 0
        self._kept: dict[str, list[tuple[Any, int]]] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self.newest: dict[str, Any] = {}
        """What was noted of the newest update that counts: numbers, or tensors of one."""

    def open(self, records: int) -> None:
        """A batch begins; 0 records: it counts for nothing."""
        self._records = records

    def note(self, values: Mapping[str, Any]) -> None:
        """Takes numbers, or tensors of one number, of the batch that is open.

        Raises:
            UsageError: a value is neither.
        """
        for name, value in values.items():
            self._open.append((name, _checked(name, value), self._records))

    def settle(self, *, counted: bool) -> None:
        """The update is over: what was noted since the last one counts, or never was."""
        if counted:
            self.newest = {name: value for name, value, records in self._open if records}
            for name, value, records in self._open:
                if records:
                    self._kept.setdefault(name, []).append((value, records))
                    if len(self._kept[name]) >= _KEPT:
                        self._fold(name)
        self._open.clear()

    def take(self) -> dict[str, float]:
        """The means since the last call. That of no records is NaN: where nothing was noted, any
        name has it."""
        means = {name: total / records for name, (total, records) in self.totals().items()}
        return means or defaultdict(lambda: math.nan)

    def totals(self) -> dict[str, tuple[float, int]]:
        """Since the last call (or that of :meth:`take`), by name: the sum of value times records,
        and the records."""
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
    """A value that ``float`` takes later, in whichever thread; a tensor is not read."""
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

"""Metrics of a training loop that count each batch once, however often it is tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Meter:
    """Means by name, weighted by records.

    What is noted waits until the update of its batch is settled. Tensors are read only when the
    means are asked for, so a GPU is not waited for in between.
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, Any, int]] = []
        self._records = 0
        self._kept: dict[str, list[tuple[Any, int]]] = {}

    def open(self, records: int) -> None:
        """A batch begins; 0 records: it counts for nothing."""
        self._records = records

    def note(self, values: Mapping[str, Any]) -> None:
        """Takes numbers, or tensors of one number, of the batch that is open."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                value = value.detach()
            self._open.append((name, value, self._records))

    def settle(self, *, counted: bool) -> None:
        """The update is over: what was noted since the last one counts, or never was."""
        if counted:
            for name, value, records in self._open:
                if records:
                    self._kept.setdefault(name, []).append((value, records))
        self._open.clear()

    def take(self) -> dict[str, float]:
        """The means since the last call."""
        return {name: total / records for name, (total, records) in self.totals().items()}

    def totals(self) -> dict[str, tuple[float, int]]:
        """Since the last call (or that of :meth:`take`), by name: the sum of value times records,
        and the records."""
        kept, self._kept = self._kept, {}
        return {
            name: (
                sum(float(value) * records for value, records in values),
                sum(records for _, records in values),
            )
            for name, values in kept.items()
        }

    def last(self, name: str) -> float | None:
        """The newest value of a metric that counts; None if there is none."""
        values = self._kept.get(name)
        return float(values[-1][0]) if values else None

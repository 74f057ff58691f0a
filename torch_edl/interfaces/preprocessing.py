"""Preprocessing: what one pass over the records fits before training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

from torch_edl.config.extensions import PREPROCESSING, installed, load

_COLUMNS = "columns"


class FitStatistics(Protocol):
    """Statistics of observed or merged records; the result is the same bits in any order."""

    @property
    def nbytes(self) -> int:
        """Size of the content in bytes, without overhead."""

    def observe(self, records: Any) -> None:
        """Add records.

        Raises:
            UsageError: the records do not match, or have too many distinct values.
        """

    def merge(self, content: bytes) -> None:
        """Add the records of other statistics, given by their :meth:`to_bytes`.

        Raises:
            UsageError: the content belongs to other statistics, or there are too many distinct
                values now.
        """

    def to_bytes(self) -> bytes:
        """Return the complete content."""


class Fittable(Protocol):
    """Preprocessing that a model file or a script declares, with the values that a fit found."""

    @property
    def spec(self) -> str:
        """The declaration, from which :meth:`from_spec` makes an equal object."""

    @property
    def needs_fit(self) -> bool:
        """True if a statistic of the records is needed."""

    @property
    def is_fitted(self) -> bool:
        """True if the object can be applied to records."""

    @classmethod
    def from_spec(cls, spec: str) -> Self:
        """Return an object with a declaration.

        Raises:
            UsageError: the text is no declaration.
        """

    def statistics(self) -> FitStatistics:
        """Return empty statistics for the fit."""

    def finish(self, statistics: Any) -> Self:
        """Fit from merged statistics."""

    def fit(self, records: Any) -> Self:
        """Fit in this process, with one pass over an iterable of parts of the records."""

    def to_bytes(self) -> bytes:
        """Return the declaration and the fitted values."""

    def load_bytes(self, content: bytes, *, source: str = "") -> Self:
        """Restore the fitted values from :meth:`to_bytes`.

        Args:
            source: origin of the content, for messages.

        Raises:
            CheckpointError: the content is damaged.
            UsageError: the content belongs to another declaration.
        """

    def load(self, path: str | Path) -> Self:
        """Restore the fitted values from the folder of a model or a checkpoint; raises the errors
        of :meth:`load_bytes`."""

    def tell_unknown(self, say: Callable[[str], None]) -> Self:
        """Report with ``say`` if many values of the next records were not seen by the fit."""


def is_fittable(thing: Any) -> bool:
    """Return True if an object is preprocessing of an installed kind; no kind is imported."""
    return any(
        each.module in sys.modules and isinstance(thing, load(PREPROCESSING, name, name))
        for name, each in installed(PREPROCESSING).items()
    )


def of_spec(spec: str) -> Fittable:
    """Return the preprocessing with a declaration.

    Raises:
        UsageError: the text is no declaration.
    """
    kind: type[Fittable] = load(PREPROCESSING, _COLUMNS, "preprocessing")
    return kind.from_spec(spec)

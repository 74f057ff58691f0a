"""The declaration of a column and of its steps, made before any records are read."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torch_edl.errors import UsageError
from torch_edl.plugins.preprocessing import arrays
from torch_edl.plugins.preprocessing.steps import (
    STEPS,
    Bucketize,
    ColumnStep,
    Fill,
    Fitted,
    Hash,
    Integers,
    Log,
    Missing,
    Normalize,
    Quantiles,
    Vocabulary,
)


@dataclass(frozen=True)
class Column:
    """A column of the records, or a cross of several columns, with its steps.

    Every method returns a new column with one more step. A column without a step that makes ids
    becomes float32 numbers.
    """

    source: str | tuple[Column, ...]
    """Name of the column in the records; for a cross, the crossed columns."""
    steps: tuple[ColumnStep, ...] = ()

    # ---- steps ----

    def fill(self, value: str | float) -> Column:
        """Replace missing values (null, NaN) by ``value``: a text for texts, else a number."""
        return self._with(Fill(value=value))

    def missing(self) -> Column:
        """Return 1 for missing values, else 0."""
        return self._with(Missing())

    def log(self) -> Column:
        """Apply ``log(1 + x)``, and ``-log(1 - x)`` to negative numbers."""
        return self._with(Log())

    def normalize(self) -> Column:
        """Scale to mean 0 and variance 1.

        Missing values stay missing; ``fill(0)`` after this step replaces them by the mean.
        """
        return self._with(Normalize())

    def ids(self, count: int = 0) -> Column:
        """Use integers as ids without a change.

        Args:
            count: number of ids; ids outside of 0 to ``count - 1`` are an error. 0: any int64.
        """
        return self._with(Integers(count=count))

    def hash(self, buckets: int = 0, *, seed: int = 0) -> Column:
        """Hash texts or integers to ids 0 to ``buckets - 1``; missing values have a bucket as well.

        The ids are the same on all machines and in all versions.

        Args:
            buckets: number of ids; 0: any int64, for embeddings without a fixed number of ids.
            seed: seed of the hash; different seeds give different buckets.
        """
        return self._with(Hash(count=buckets, seed=seed))

    def vocabulary(
        self, size: int, *, min_count: int = 1, oov: int = 1, distinct: int = 4_000_000
    ) -> Column:
        """Map values to ids by rank.

        The most frequent value has id ``oov``, the next one ``oov + 1``, and so on. Equally
        frequent values are ordered by their bytes. Integers are treated as their decimal digits.

        Values outside of the vocabulary have ids below ``oov``: 0 if the value is missing or
        ``oov`` is 1, else an id from 1 to ``oov - 1`` by a hash.

        Args:
            size: number of ids, including those below ``oov``.
            min_count: smallest number of occurrences of a value in the vocabulary.
            oov: number of ids for all other values.
            distinct: largest number of distinct values; more values raise an error, since all
                values are counted exactly.
        """
        return self._with(Vocabulary(size=size, min_count=min_count, oov=oov, distinct=distinct))

    def bucketize(
        self, boundaries: Sequence[float] = (), *, quantiles: int = 0, cells: int = 1 << 16
    ) -> Column:
        """Map numbers to ids by size: 0 for a missing one, 1 below the first boundary, and so on.

        Args:
            boundaries: boundaries in ascending order; a number equal to a boundary is below it.
            quantiles: number of buckets with about equally many records, fitted to the data; an
                alternative to ``boundaries``.
            cells: number of cells of the histogram of the fit, at least 4,096; the quantiles are
                exact up to this number of distinct values, see
                :class:`~torch_edl.plugins.preprocessing.statistic.QuantileSketch`.
        """
        if bool(len(boundaries)) == bool(quantiles):
            raise UsageError("bucketize() takes either boundaries or quantiles=N")
        if quantiles:
            return self._with(Quantiles(count=quantiles, cells=cells))
        return self._with(Bucketize(boundaries=boundaries))

    def _with(self, step: ColumnStep) -> Column:
        # A number of ids is often a number of numpy, such as the maximum of a column.
        plain = {n: v.item() for n, v in vars(step).items() if isinstance(v, np.generic)}
        step = replace(step, **plain)
        for name, value in vars(step).items():
            if isinstance(value, float) and name != "value":
                raise UsageError(f"{self}.{step.name}: {name} is {value}; expected an integer")
        if self.gives_ids:
            raise UsageError(f"{self}: {self.steps[-1].name} makes ids; no step can follow it")
        if step.result is not None and any(each.result is not None for each in self.steps):
            raise UsageError(
                f"{self}.{step.name}: two fitted steps would take two passes over the data; "
                "leave one of them out"
            )
        if isinstance(self.source, tuple) and not isinstance(step, Hash):
            raise UsageError(f"{self}.{step.name}: a cross is hashed: cross(...).hash(buckets)")
        return replace(self, steps=(*self.steps, step))

    # ---- properties ----

    @property
    def name(self) -> str:
        """Name of the column for messages; for a cross, the names joined by " x "."""
        if isinstance(self.source, str):
            return self.source
        return " x ".join(part.name for part in self.source)

    def __str__(self) -> str:
        return f"column {self.name!r}"

    @property
    def gives_ids(self) -> bool:
        """True if the column becomes int64 ids, False if it becomes float32 numbers."""
        return bool(self.steps) and self.steps[-1].gives_ids

    @property
    def buckets(self) -> int:
        """Number of ids, which are 0 to ``buckets - 1``; 0: any int64."""
        return self.steps[-1].buckets if self.steps else 0

    @property
    def fitted_step(self) -> ColumnStep | None:
        """The step that needs a statistic; None if there is none."""
        return next((step for step in self.steps if step.result is not None), None)

    def apart(self) -> Column:
        """Return the column such that its ids differ from those of other columns.

        The seed of a hash without a number of buckets then depends on the declaration. Any other
        column is returned without a change.
        """
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, Hash) or last.count:
            return self
        declared = json.dumps(self.spec()).encode()
        digest = hashlib.blake2b(declared, digest_size=8).digest()
        seed = last.seed ^ int.from_bytes(digest, "little")
        return replace(self, steps=(*self.steps[:-1], replace(last, seed=seed)))

    def walk(self, path: str) -> Iterator[tuple[str, Column]]:
        """Yield this column and the columns that it crosses, each with a unique path."""
        yield path, self
        if isinstance(self.source, tuple):
            for number, part in enumerate(self.source):
                yield from part.walk(f"{path}.{number}")

    # ---- values ----

    def observed(self, records: Any) -> Any:
        """Return the input of the fitted step: values of parsed records after the earlier steps."""
        assert isinstance(self.source, str), "a cross is hashed"
        found = arrays.take(records, self.source)
        for step in itertools.takewhile(lambda each: each.result is None, self.steps):
            found = step.apply(found, None, self.name)
        return found

    def values(self, records: Any, path: str, fitted: Mapping[str, Fitted]) -> Any:
        """Return the values in parsed records after all steps.

        Args:
            path: key of the column in ``fitted``, see :meth:`walk`.
        """
        source, own = self.source, fitted.get(path)
        if isinstance(source, str):
            found = arrays.take(records, source)
        else:
            parts = enumerate(source)
            found = [part.values(records, f"{path}.{number}", fitted) for number, part in parts]
        for step in self.steps:
            if step.result is not None and own is None:
                raise UsageError(
                    f"{self}: {step.name} is not fitted; call fit(records) or load(path) first"
                )
            found = step.apply(found, own, self.name)
        return found

    # ---- as JSON ----

    def spec(self) -> dict[str, Any]:
        """Return the declaration as values that JSON supports."""
        crossed = isinstance(self.source, tuple)
        source = [part.spec() for part in self.source] if crossed else self.source  # type: ignore[union-attr]
        return {"column": source, "steps": [step.spec() for step in self.steps]}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Column:
        """Return the column of a declaration, the inverse of :meth:`spec`.

        Raises:
            KeyError, TypeError, ValueError: the argument is no declaration.
        """
        source = spec["column"]
        if not isinstance(source, str):
            source = tuple(cls.from_spec(part) for part in source)
        made = cls(source)
        for step in spec["steps"]:
            options = dict(step)
            made = made._with(STEPS[options.pop("step")](**options))
        return made


def column(name: str) -> Column:
    """Declare a column by its name in the records."""
    return Column(name)


def cross(*columns: str | Column) -> Column:
    """Declare the combinations of several columns: ``cross("country", "device").hash(1000)``.

    A column may have steps of its own, such as ``column("age").bucketize([18, 35, 65])``.
    """
    if len(columns) < 2:
        raise UsageError(f"cross() of {len(columns)} columns; expected two or more")
    made = tuple(Column(each) if isinstance(each, str) else each for each in columns)
    if any(isinstance(each.source, tuple) and not each.steps for each in made):
        raise UsageError("cross() of a cross: a cross is hashed: cross(...).hash(buckets)")
    return Column(made)


@dataclass(frozen=True)
class OneSpace:
    """Columns of ids in one common space of ids; see :func:`one_space`."""

    columns: tuple[Column, ...]

    @property
    def offsets(self) -> list[int]:
        """Numbers that are added to the ids of each column; 0 for a column with any int64."""
        offsets, begin = [], 0
        for each in self.columns:
            offsets.append(begin if each.buckets else 0)
            begin += each.buckets
        return offsets


def one_space(columns: Iterable[Column]) -> OneSpace:
    """Place the ids of each column after those of the column before it.

    One embedding then serves all columns, and no two columns share a row.
    """
    made = OneSpace(tuple(columns))
    for each in made.columns:
        if not each.gives_ids or not each.buckets:
            raise UsageError(
                f"one_space(): {each} has no known number of ids; end it with hash(buckets), "
                "vocabulary(size), bucketize(...) or ids(count)"
            )
    return made


@dataclass(frozen=True)
class Shared:
    """Columns in which equal values have equal ids; see :func:`shared`."""

    columns: tuple[Column, ...]


def shared(columns: Iterable[Column]) -> Shared:
    """Give equal values of several columns the same id, and so the same row of an embedding.

    Examples are the last three items that a user viewed, or the sender and the receiver of a
    message. In a plain list, by contrast, each column has its own ids.
    """
    made = Shared(tuple(columns))
    for each in made.columns:
        if not each.gives_ids or each.fitted_step is not None:
            raise UsageError(
                f"shared(): {each} has ids that depend on its own values, or none; end it with "
                "hash(...), bucketize([...]) or ids(...)"
            )
    return made

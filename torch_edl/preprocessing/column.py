"""A column, and what is done with it: declared step by step, before there are any records."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.preprocessing import arrays
from torch_edl.preprocessing.fitted import Fitted
from torch_edl.preprocessing.steps import (
    STEPS,
    Bucketize,
    ColumnStep,
    Fill,
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
    """A column of the records, or a cross of several, and the steps that it goes through.

    Every method returns another column with one more step. Without a step that makes ids of it, a
    column is float32 numbers.
    """

    source: str | tuple[Column, ...]
    """Its name in the records; or the columns that are crossed."""
    steps: tuple[ColumnStep, ...] = ()

    # ---- steps ----

    def fill(self, value: str | float) -> Column:
        """``value`` in place of what is missing (null, NaN): a text for texts, else a number."""
        return self._with(Fill(value=value))

    def missing(self) -> Column:
        """1 where the column is missing, else 0."""
        return self._with(Missing())

    def log(self) -> Column:
        """``log(1 + x)``; of negative numbers ``-log(1 - x)``."""
        return self._with(Log())

    def normalize(self) -> Column:
        """Mean 0 and variance 1. What is missing stays so, and ``fill(0)`` makes it the mean."""
        return self._with(Normalize())

    def ids(self, count: int = 0) -> Column:
        """Integers as they are.

        Args:
            count: ids are 0 to so many less one, or an error; 0: any int64.
        """
        return self._with(Integers(count=count))

    def hash(self, buckets: int = 0, *, seed: int = 0) -> Column:
        """Ids 0 to ``buckets - 1`` by a hash of the text, or of the integer; what is missing has a
        bucket as well. The same on all machines, for ever.

        Args:
            buckets: 0: any int64, for embeddings without a fixed number of ids.
            seed: another number gives other buckets.
        """
        return self._with(Hash(count=buckets, seed=seed))

    def vocabulary(
        self, size: int, *, min_count: int = 1, oov: int = 1, distinct: int = 4_000_000
    ) -> Column:
        """Ids by rank: the most frequent value has id ``oov``, the next one ``oov + 1`` and so on;
        equally frequent ones are in the order of their bytes. Integers count as their digits.

        Values that are not in the vocabulary have ids below ``oov``: 0 where the value is missing
        or ``oov`` is 1, else 1 to ``oov - 1`` by a hash.

        Args:
            size: number of ids, those below ``oov`` included.
            min_count: leave out what occurs more rarely.
            oov: ids for all other values.
            distinct: values are counted exactly, up to so many different ones; more is an error.
        """
        return self._with(Vocabulary(size=size, min_count=min_count, oov=oov, distinct=distinct))

    def bucketize(
        self, boundaries: Sequence[float] = (), *, quantiles: int = 0, cells: int = 1 << 16
    ) -> Column:
        """Ids by size: 0 where the number is missing, 1 below the first boundary, and so on.

        Args:
            boundaries: rising; a number that is equal to one is below it.
            quantiles: instead, so many buckets of about equally many records, fitted.
            cells: of the histogram of the fit, 4,096 or more: with so many different numbers at
                most the quantiles are exact, see
                :class:`~torch_edl.preprocessing.statistic.Histogram`.
        """
        if bool(boundaries) == bool(quantiles):
            raise UsageError("bucketize() takes either boundaries or quantiles=N")
        if quantiles:
            return self._with(Quantiles(count=quantiles, cells=cells))
        return self._with(Bucketize(boundaries=boundaries))

    def _with(self, step: ColumnStep) -> Column:
        if self.gives_ids:
            raise UsageError(f"{self}: {self.steps[-1].name} makes ids; no step can follow it")
        if step.fitted and any(each.fitted for each in self.steps):
            raise UsageError(
                f"{self}.{step.name}: two fitted steps would take two passes over the data; "
                "leave one of them out"
            )
        if isinstance(self.source, tuple) and not isinstance(step, Hash):
            raise UsageError(f"{self}.{step.name}: a cross is hashed: cross(...).hash(buckets)")
        return replace(self, steps=(*self.steps, step))

    # ---- what it is ----

    @property
    def name(self) -> str:
        """What a person calls it."""
        if isinstance(self.source, str):
            return self.source
        return " x ".join(part.name for part in self.source)

    def __str__(self) -> str:
        return f"column {self.name!r}"

    @property
    def gives_ids(self) -> bool:
        """int64 ids; else float32 numbers."""
        return bool(self.steps) and self.steps[-1].gives_ids

    @property
    def buckets(self) -> int:
        """Its ids are 0 to so many less one; 0: any int64."""
        return self.steps[-1].buckets if self.steps else 0

    @property
    def fitted_step(self) -> ColumnStep | None:
        """The step that needs a statistic."""
        return next((step for step in self.steps if step.fitted), None)

    def apart(self) -> Column:
        """The column, hashed so that its ids are not those of another column: the seed of a hash
        without buckets depends on the declaration. Any other column is returned as it is."""
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, Hash) or last.count:
            return self
        declared = json.dumps(self.spec()).encode()
        digest = hashlib.blake2b(declared, digest_size=8).digest()
        seed = last.seed ^ int.from_bytes(digest, "little")
        return replace(self, steps=(*self.steps[:-1], replace(last, seed=seed)))

    def walk(self, path: str) -> Iterator[tuple[str, Column]]:
        """This column and those that it crosses, each with a name of its own."""
        yield path, self
        if isinstance(self.source, tuple):
            for number, part in enumerate(self.source):
                yield from part.walk(f"{path}.{number}")

    # ---- what it becomes ----

    def observed(self, records: Any) -> Any:
        """What its fitted step is fitted by: its values in parsed records after the steps before
        that one."""
        assert isinstance(self.source, str), "a cross is hashed"
        found = arrays.take(records, self.source)
        for step in itertools.takewhile(lambda each: not each.fitted, self.steps):
            found = step.apply(found, None, self.name)
        return found

    def values(self, records: Any, path: str, fitted: Mapping[str, Fitted]) -> Any:
        """Its values in parsed records after all steps.

        Args:
            path: its name in ``fitted``, see :meth:`walk`.
        """
        source, own = self.source, fitted.get(path)
        if isinstance(source, str):
            found = arrays.take(records, source)
        else:
            parts = enumerate(source)
            found = [part.values(records, f"{path}.{number}", fitted) for number, part in parts]
        for step in self.steps:
            if step.fitted and own is None:
                raise UsageError(
                    f"{self}: {step.name} is not fitted; call fit(records) or load(path) first"
                )
            found = step.apply(found, own, self.name)
        return found

    # ---- as JSON ----

    def spec(self) -> dict[str, Any]:
        """As JSON can say it."""
        crossed = isinstance(self.source, tuple)
        source = [part.spec() for part in self.source] if crossed else self.source  # type: ignore[union-attr]
        return {"column": source, "steps": [step.spec() for step in self.steps]}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Column:
        """The inverse of :meth:`spec`.

        Raises:
            KeyError, TypeError, ValueError: it is none.
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
    """A column of the records, by its name."""
    return Column(name)


def cross(*columns: str | Column) -> Column:
    """The combinations of the values of several columns: ``cross("country", "device").hash(1000)``.

    A column may have steps of its own, such as ``column("age").bucketize([18, 35, 65])``.
    """
    if len(columns) < 2:
        raise UsageError(f"cross() of {len(columns)} columns; expected two or more")
    return Column(tuple(Column(each) if isinstance(each, str) else each for each in columns))


@dataclass(frozen=True)
class OneSpace:
    """Columns of ids that share one space of ids; see :func:`one_space`."""

    columns: tuple[Column, ...]

    @property
    def offsets(self) -> list[int]:
        """What is added to the ids of each column; 0 to those of a column with any int64."""
        offsets, begin = [], 0
        for each in self.columns:
            offsets.append(begin if each.buckets else 0)
            begin += each.buckets
        return offsets


def one_space(columns: Sequence[Column]) -> OneSpace:
    """The ids of each column begin after those of the column before it, so one embedding serves
    all columns and no two columns share a row."""
    for each in columns:
        if not each.gives_ids or not each.buckets:
            raise UsageError(
                f"one_space(): {each} has no known number of ids; end it with hash(buckets), "
                "vocabulary(size), bucketize(...) or ids(count)"
            )
    return OneSpace(tuple(columns))


@dataclass(frozen=True)
class Shared:
    """Columns of ids whose equal ids are the same; see :func:`shared`."""

    columns: tuple[Column, ...]


def shared(columns: Sequence[Column]) -> Shared:
    """Equal values of the columns have the same id, and so the same row of an embedding: the last
    three items that a user looked at, the sender and the receiver of a message. The columns of a
    plain list have ids of their own."""
    for each in columns:
        if not each.gives_ids or each.fitted_step is not None:
            raise UsageError(
                f"shared(): {each} has ids that depend on its own values, or none; end it with "
                "hash(...), bucketize([...]) or ids(...)"
            )
    return Shared(tuple(columns))

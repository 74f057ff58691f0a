"""All columns of a model: their outputs, fitting, saving and loading."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load

from torch_edl.checkpoint.durable import replacing
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.plugins.preprocessing import arrays
from torch_edl.plugins.preprocessing.arrays import texts
from torch_edl.plugins.preprocessing.column import Column, Shared
from torch_edl.plugins.preprocessing.group import Group, Output
from torch_edl.plugins.preprocessing.statistic import Statistics, packed, unpacked
from torch_edl.plugins.preprocessing.steps import Fitted, Missing, Words

log = logging.getLogger(__name__)

RECORDS = 1000
"""Number of records that are examined."""

_MANY = 0.01

_FORMAT = 1
_ABOUT = "preprocessing"


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
            seen, missing = len(found), int(Missing().apply(found, None, each.name).sum())
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


class Columns:
    """Converts columns of records to arrays, by name of the output.

    A column becomes an array (n,), a list of columns one array (n, columns): int64 for ids, float32
    for numbers. A call takes records, which are a ``pyarrow.Table``, a data frame, a mapping of
    names to columns or a list of mappings, and returns a dict of numpy arrays (of tensors, if the
    columns are tensors of torch).

    Args:
        parse: converts the output of a source to such records, for sources without tables (RecordIO
            gives a list of ``bytes``).
        outputs: by name of the output, a :class:`Column` or a list of columns. Columns of ids in a
            list have no ids in common, as in :func:`one_space`: the ids of a column begin after
            those of the one before, and hashes without a number of buckets have different seeds.
            Only ``ids()`` without a count is not changed. In :func:`shared` of a list, equal values
            have the same id.

    Raises:
        UsageError: an array would mix ids and numbers, or its ids exceed 64 bits.
    """

    def __init__(self, parse: Callable[[Any], Any] | None = None, /, **outputs: Output) -> None:
        self._parse = parse
        self._outputs = {name: Group.of(name, each) for name, each in outputs.items()}
        self._fitted: dict[str, Fitted] = {}
        self._unknown: UnknownValues | None = None
        self._told: set[str] = set()  # paths of columns whose missing values were reported
        if not outputs:
            raise UsageError("Columns() without columns; for example Columns(age=column('age'))")

    # ---- properties ----

    def walk(self) -> Iterator[tuple[str, Column]]:
        """Yield every column, including crossed ones, each with a unique path."""
        for name, group in self._outputs.items():
            for number, each in enumerate(group.columns):
                yield from each.walk(f"{name}.{number}")

    @property
    def needs_fit(self) -> bool:
        """True if a step needs a statistic of the records."""
        return any(each.fitted_step is not None for _, each in self.walk())

    @property
    def is_fitted(self) -> bool:
        """True if the object can be called with records."""
        return bool(self._fitted) or not self.needs_fit

    def buckets(self, name: str) -> int:
        """Return the number of ids of an output, which are 0 to one less; 0: any int64.

        Args:
            name: name of the output, a keyword argument of ``Columns``.

        Raises:
            UsageError: the output does not exist.
        """
        if name not in self._outputs:
            raise UsageError(
                f"columns.buckets({name!r}): no such output; name an argument of Columns(...): "
                f"{', '.join(self._outputs)}"
            )
        return self._outputs[name].buckets

    def fitted(self, name: str, number: int = 0) -> Any:
        """Return what was fitted for a column of an output.

        Returns:
            A :class:`Scale`, :class:`Boundaries` or :class:`Words`.
        """
        return self._fitted[f"{name}.{number}"]

    def ids_of(self, name: str, column: str, values: Any) -> npt.NDArray[np.int64]:
        """Return the ids (n,) of values of a column, which are their rows in an embedding.

        Args:
            name: name of the output.
            column: name of the column in the records; for a cross, the names joined by " x ".
            values: n values (texts, numbers, None); for a cross, a mapping with the values of each
                crossed column.

        Raises:
            UsageError: the output does not exist, it has no such column of ids, or nothing is
                fitted yet.
        """
        self.buckets(name)
        group = self._outputs[name]
        found = [number for number, each in enumerate(group.columns) if each.name == column]
        if len(found) != 1 or not group.columns[found[0]].gives_ids:
            known = ", ".join(repr(each.name) for each in group.columns if each.gives_ids)
            raise UsageError(
                f"columns.ids_of({name!r}, {column!r}): {len(found)} columns of ids of that name "
                f"in the output; it has {known or 'none'}"
            )
        records = values if isinstance(values, Mapping) else {column: values}
        ids = group.columns[found[0]].values(records, f"{name}.{found[0]}", self._fitted)
        return group.placed(ids, found[0])

    @property
    def spec(self) -> str:
        """The declaration as JSON; equal declarations have equal texts."""
        return json.dumps({name: group.spec() for name, group in self._outputs.items()})

    @classmethod
    def from_spec(cls, spec: str, parse: Callable[[Any], Any] | None = None) -> Self:
        """Return the columns of a declaration, the inverse of :attr:`spec`.

        Raises:
            UsageError: the text is no declaration.
        """
        try:
            groups = {name: Group.output(each) for name, each in json.loads(spec).items()}
            return cls(parse, **groups)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"not a declaration of columns: {error!r}") from None

    # ---- fitting ----

    def statistics(self) -> Statistics:
        """Return empty statistics for the fit."""
        fitted = {path: each for path, each in self.walk() if each.fitted_step is not None}
        needed = {leaf.name: leaf for _, leaf in self.walk() if isinstance(leaf.source, str)}
        return Statistics(fitted, self._parsed, needed=list(needed))

    def _parsed(self, records: Any) -> Any:
        return records if self._parse is None else self._parse(records)

    def fit(self, records: Any) -> Self:
        """Fit in this process, with one pass over the records.

        Args:
            records: all records, or an iterable of parts such as the batches of a
                ``pyarrow.dataset``.
        """
        statistics = self.statistics()
        # A list of mappings has the records if their values are scalars, and parts otherwise.
        rows = arrays.are_rows(records) and not any(map(np.ndim, records[0].values()))
        whole = rows or hasattr(records, "column_names") or hasattr(records, "keys")
        for part in [records] if whole else records:
            statistics.observe(part)
        return self.finish(statistics)

    def finish(self, statistics: Statistics) -> Self:
        """Fit from merged statistics."""
        self._fitted = statistics.finish()
        return self

    # ---- use ----

    def tell_unknown(self, say: Callable[[str], None]) -> Self:
        """Report vocabularies that lack many values of the first 1,000 records of the next calls.

        Args:
            say: called with one text per vocabulary.
        """
        self._unknown = UnknownValues(say)
        return self

    def __call__(self, records: Any) -> dict[str, Any]:
        """Return the outputs for records.

        Raises:
            UsageError: a column is missing or has another type, or nothing is fitted yet.
        """
        parsed = self._parsed(records)
        unknown = self._unknown
        if unknown is not None and not unknown.observe(self.walk(), parsed, self._fitted):
            self._unknown = None
        made = {
            name: group.stack(
                each.values(parsed, f"{name}.{number}", self._fitted)
                for number, each in enumerate(group.columns)
            )
            for name, group in self._outputs.items()
        }
        for name, group in self._outputs.items():
            self._tell_missing(name, group, made[name])
        return arrays.to_tensors(made) if arrays.from_tensors(parsed) else made

    def _tell_missing(self, name: str, group: Group, values: npt.NDArray[Any]) -> None:
        """Log one warning for each column of numbers (n,) or (n, columns) with missing values."""
        if group.columns[0].gives_ids:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            # The sum is NaN if an element is, and takes a tenth of the time of a search.
            if not np.isnan(values.sum()):
                return
        lacks = np.isnan(values).reshape(len(values), -1).sum(0)
        for number, each in enumerate(group.columns):
            path = f"{name}.{number}"
            if lacks[number] and path not in self._told:
                self._told.add(path)
                log.warning(
                    "preprocessing: column %r has no value in %s of %s records (null or NaN), and "
                    "is NaN there, so the loss becomes NaN; add .fill(value), or .missing(), which "
                    "gives 1 for a missing value",
                    each.name, f"{lacks[number]:,}", f"{len(values):,}",
                )  # fmt: skip

    # ---- saving ----

    def to_bytes(self) -> bytes:
        """Return the declaration and the fitted values as safetensors."""
        about = json.dumps({"format": _FORMAT, "columns": self.spec})
        # One entry, since safetensors writes several in an arbitrary order, and equal contents must
        # have equal bytes.
        return packed({path: fit.arrays() for path, fit in self._fitted.items()}, {_ABOUT: about})

    def load_bytes(self, content: bytes, *, source: str = "") -> Self:
        """Restore the fitted values from :meth:`to_bytes`.

        Args:
            source: origin of the content, for messages.

        Raises:
            CheckpointError: the content is damaged.
            UsageError: the content belongs to other columns.
        """
        saved, declared = _spec_of(content, source), self.spec
        if saved != declared:
            raise UsageError(
                f"{source or 'the saved preprocessing'} is of other columns: "
                f"{_differ(saved, declared)}; "
                "declare the columns as they were, or train without the old model"
            )
        found = unpacked(content)
        try:
            self._fitted = {
                path: each.fitted_step.result.from_arrays(found[path])
                for path, each in self.walk()
                if each.fitted_step is not None and found
            }
        except (KeyError, ValueError, IndexError) as error:
            raise CheckpointError(f"{source}: damaged: {error!r}") from None
        return self

    def save(self, path: str | Path) -> None:
        """Write a file atomically."""
        with replacing(path) as file:
            file.write(self.to_bytes())

    def load(self, path: str | Path) -> Self:
        """Restore the fitted values from a file, or from the folder of a model or a checkpoint.

        Raises:
            CheckpointError: the file does not exist or is damaged.
            UsageError: the file belongs to other columns.
        """
        content, file = _read(path)
        return self.load_bytes(content, source=str(file))

    @classmethod
    def open(cls, path: str | Path, parse: Callable[[Any], Any] | None = None) -> Self:
        """Return the columns of a file, or of the folder of a model, with their declaration.

        Raises:
            CheckpointError: the file does not exist or is damaged.
        """
        content, file = _read(path)
        columns = cls.from_spec(_spec_of(content, str(file)), parse)
        return columns.load_bytes(content, source=str(file))


def _read(path: str | Path) -> tuple[bytes, Path]:
    file = Path(path)
    file = file / PREPROCESSING_FILE if file.is_dir() else file
    try:
        return file.read_bytes(), file
    except OSError as error:
        raise CheckpointError(f"{file}: no preprocessing there: {error.strerror}") from None


def _spec_of(content: bytes, source: str) -> str:
    """Return the declaration in the content of a file.

    Raises:
        CheckpointError: the content is damaged, or has another format version.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        load(content)
        about = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_ABOUT])
        version, columns = about["format"], str(about["columns"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{source}: not a file of preprocessing: {error!r}") from None
    if version != _FORMAT:
        raise CheckpointError(f"{source}: format {version}; this version reads format {_FORMAT}")
    return columns


def _differ(saved: str, declared: str) -> str:
    before, now = json.loads(saved), json.loads(declared)
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            return f"{name} was {_short(before.get(name))}, and is {_short(now.get(name))}"
    return "their order"


def _short(spec: Any) -> str:
    if spec is None:
        return "absent"
    mark = "shared " if isinstance(Group.output(spec), Shared) else ""
    text = mark + json.dumps(spec["columns"])
    return text if len(text) <= 200 else text[:200] + "..."

"""All columns of a model: what they become, fitted, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from torch_edl.config.checkpoint import PREPROCESSING_FILE
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.files import replacing
from torch_edl.preprocessing import arrays
from torch_edl.preprocessing.column import Column, Shared
from torch_edl.preprocessing.fitted import Boundaries, Fitted, Scale, Words
from torch_edl.preprocessing.group import Group, Output
from torch_edl.preprocessing.statistics import Statistics
from torch_edl.preprocessing.unknown import UnknownValues

_FORMAT = 1
_ABOUT = "preprocessing"
_FITTED = {"normalize": Scale, "quantiles": Boundaries, "vocabulary": Words}


class Columns:
    """What the columns of records become: arrays by name.

    A column gives an array (n,), several columns one array (n, columns): int64 where they are ids,
    float32 where they are numbers. Called with records, which are a ``pyarrow.Table``, a data
    frame, a mapping of names to columns or a list of mappings, it returns a dict of numpy arrays
    (of tensors, if the columns are tensors of torch).

    Args:
        parse: makes such records of what a source gives, where that is no table (RecordIO gives
            a list of ``bytes``).
        outputs: by the name of what they become, a :class:`Column` or a list of them. Columns of
            ids in a list have no id in common, as in :func:`one_space`: the ids of a column begin
            after those of the one before, and hashes without a number of buckets have seeds of
            their own. Only ``ids()`` without a count stays as it is. In :func:`shared` of a list,
            equal values have the same id.

    Raises:
        UsageError: ids and numbers are in one array, or there are more ids than 64 bits have.
    """

    def __init__(self, parse: Callable[[Any], Any] | None = None, /, **outputs: Output) -> None:
        self._parse = parse
        self._outputs = {name: Group.of(name, each) for name, each in outputs.items()}
        self._fitted: dict[str, Fitted] = {}
        self._unknown: UnknownValues | None = None
        if not outputs:
            raise UsageError("Columns() without columns; for example Columns(age=column('age'))")

    # ---- what it is ----

    def walk(self) -> Iterator[tuple[str, Column]]:
        """Every column, also those that are crossed, each with a name of its own."""
        for name, group in self._outputs.items():
            for number, each in enumerate(group.columns):
                yield from each.walk(f"{name}.{number}")

    @property
    def needs_fit(self) -> bool:
        """A step needs a statistic of the records."""
        return any(each.fitted_step is not None for _, each in self.walk())

    @property
    def is_fitted(self) -> bool:
        """It can be called."""
        return bool(self._fitted) or not self.needs_fit

    def buckets(self, name: str) -> int:
        """The ids of an output are 0 to so many less one; 0: any int64.

        Args:
            name: of the output, which is a keyword argument of ``Columns``.

        Raises:
            UsageError: there is no such output.
        """
        if name not in self._outputs:
            raise UsageError(
                f"columns.buckets({name!r}): no such output; name an argument of Columns(...): "
                f"{', '.join(self._outputs)}"
            )
        return self._outputs[name].buckets

    def fitted(self, name: str, number: int = 0) -> Any:
        """What was fitted for a column of an output: a :class:`Scale`, :class:`Boundaries` or
        :class:`Words`."""
        return self._fitted[f"{name}.{number}"]

    def ids_of(self, name: str, column: str, values: Any) -> npt.NDArray[np.int64]:
        """The ids (n,) of some values of a column: the rows of an embedding that belong to them.

        Args:
            name: of the output.
            column: its name in the records; of a cross, the names with " x " between them.
            values: n values (texts, numbers, None); of a cross, a mapping with those of each of its
                columns.

        Raises:
            UsageError: there is no such output, or no such column of ids in it; or nothing is
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
        """The declaration, as JSON; equal for equal ones."""
        return json.dumps({name: group.spec() for name, group in self._outputs.items()})

    @classmethod
    def from_spec(cls, spec: str, parse: Callable[[Any], Any] | None = None) -> Self:
        """The inverse of :attr:`spec`.

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
        """Those that the fit takes, of no records yet."""
        fitted = {path: each for path, each in self.walk() if each.fitted_step is not None}
        needed = {leaf.name: leaf for _, leaf in self.walk() if isinstance(leaf.source, str)}
        return Statistics(fitted, self._parsed, needed=list(needed))

    def _parsed(self, records: Any) -> Any:
        return records if self._parse is None else self._parse(records)

    def fit(self, records: Any) -> Self:
        """Fits in this process, by one pass.

        Args:
            records: all of them, or an iterable of parts such as the batches of a
                ``pyarrow.dataset``.
        """
        statistics = self.statistics()
        whole = hasattr(records, "column_names") or hasattr(records, "keys")
        for part in [records] if whole else records:
            statistics.observe(part)
        return self.finish(statistics)

    def finish(self, statistics: Statistics) -> Self:
        """Fits by statistics that were merged."""
        self._fitted = statistics.finish()
        return self

    # ---- use ----

    def tell_unknown(self, say: Callable[[str], None]) -> Self:
        """Have ``say`` called with a text for each vocabulary that lacks many values of the first
        1,000 records of the calls from now on."""
        self._unknown = UnknownValues(say)
        return self

    def __call__(self, records: Any) -> dict[str, Any]:
        """The outputs of some records.

        Raises:
            UsageError: a column is missing or of another type, or nothing is fitted yet.
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
        return arrays.to_tensors(made) if arrays.from_tensors(parsed) else made

    # ---- saved ----

    def to_bytes(self) -> bytes:
        """The declaration and what was fitted, as safetensors."""
        tensors = {
            f"{path}/{key}": np.ascontiguousarray(array)
            for path, fitted in self._fitted.items()
            for key, array in fitted.arrays().items()
        }
        about = json.dumps({"format": _FORMAT, "columns": self.spec})
        # One entry: safetensors writes several in any order, and equal contents are to be equal.
        return bytes(save(tensors, {_ABOUT: about}))

    def load_bytes(self, content: bytes, *, source: str = "") -> Self:
        """Takes over what was fitted elsewhere.

        Args:
            source: where it comes from, for errors.

        Raises:
            CheckpointError: it is damaged.
            UsageError: it is of other columns.
        """
        saved, declared = _spec_of(content, source), self.spec
        if saved != declared:
            raise UsageError(
                f"{source or 'the saved preprocessing'} is of other columns: "
                f"{_differ(saved, declared)}; "
                "declare the columns as they were, or train without the old model"
            )
        found: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for key, array in load(content).items():
            path, _, part = key.rpartition("/")
            found.setdefault(path, {})[part] = array
        try:
            self._fitted = {
                path: _FITTED[each.fitted_step.name].from_arrays(found[path])  # type: ignore[attr-defined]
                for path, each in self.walk()
                if each.fitted_step is not None and found
            }
        except (KeyError, ValueError, IndexError) as error:
            raise CheckpointError(f"{source}: damaged: {error!r}") from None
        return self

    def save(self, path: str | Path) -> None:
        """Writes a file, whole or not at all."""
        with replacing(path) as file:
            file.write(self.to_bytes())

    def load(self, path: str | Path) -> Self:
        """Takes over what :meth:`save` wrote, or the preprocessing in the folder of an exported
        model or a checkpoint.

        Raises:
            CheckpointError: there is none, or it is damaged.
            UsageError: it is of other columns.
        """
        content, file = _read(path)
        return self.load_bytes(content, source=str(file))

    @classmethod
    def open(cls, path: str | Path, parse: Callable[[Any], Any] | None = None) -> Self:
        """The columns of a file, or of the folder of a model, without their declaration.

        Raises:
            CheckpointError: there is none, or it is damaged.
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
    """The declaration in a file.

    Raises:
        CheckpointError: the file is damaged, or of another version.
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
    """The first output that differs, in words."""
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

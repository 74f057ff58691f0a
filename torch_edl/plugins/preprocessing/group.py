"""The columns of one output, which become one array of ids or of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl.errors import UsageError
from torch_edl.plugins.preprocessing import arrays
from torch_edl.plugins.preprocessing.column import Column, OneSpace, Shared

_MOST_IDS = (1 << 63) - 1

Output = Column | OneSpace | Shared | Sequence[Column]


class Group:
    """The columns of one output."""

    def __init__(self, columns: Sequence[Column], *, single: bool, offsets: Sequence[int]) -> None:
        self.columns = columns
        self._single = single
        self._offsets = offsets

    @classmethod
    def of(cls, name: str, output: Output) -> Group:
        columns: tuple[Column, ...]
        is_list = False
        if isinstance(output, Column):
            columns = (output,)
        elif isinstance(output, OneSpace | Shared):
            columns = output.columns
        else:
            columns, is_list = tuple(output), True
        if not columns or not all(isinstance(each, Column) for each in columns):
            raise UsageError(f"{name}: expected column(...), a list of them, or one_space([...])")
        if len({each.gives_ids for each in columns}) != 1:
            raise UsageError(
                f"{name}: ids and numbers in one array; give each an output of its own, or end "
                "what is to be ids with ids()"
            )
        if any(isinstance(each.source, tuple) and not each.steps for each in columns):
            raise UsageError(f"{name}: a cross is hashed: cross(...).hash(buckets)")
        if is_list and columns[0].gives_ids:
            output = OneSpace(tuple(each.apart() for each in columns))
            columns = output.columns
        offsets = output.offsets if isinstance(output, OneSpace) else ()
        if offsets and sum(each.buckets for each in columns) > _MOST_IDS:
            raise UsageError(
                f"{name}: the columns have more ids than 64 bits; hash to fewer buckets, or leave "
                "the number out: hash()"
            )
        return cls(columns, single=isinstance(output, Column), offsets=offsets)

    @property
    def buckets(self) -> int:
        counts = [each.buckets for each in self.columns]
        if not all(counts):
            return 0
        return sum(counts) if self._offsets else max(counts)

    def stack(self, columns: Iterable[Any]) -> npt.NDArray[Any]:
        """Return one array of the columns; each column is copied once."""
        ids = self.columns[0].gives_ids
        dtype = np.int64 if ids else np.float32
        if self._single:
            [only] = columns
            return self._typed(only, self.columns[0]).astype(dtype, copy=False)
        out: npt.NDArray[Any] | None = None
        for place, values in enumerate(columns):
            typed = self._typed(values, self.columns[place])
            if out is None:
                out = np.empty((len(typed), len(self.columns)), dtype)
            if len(typed) != len(out):
                raise UsageError(
                    f"{self.columns[place]} has {len(typed)} values, others have {len(out)}"
                )
            if self._offsets:
                np.add(typed, self._offsets[place], out=out[:, place])
            else:
                out[:, place] = typed
        assert out is not None
        return out

    def placed(self, ids: Any, number: int) -> npt.NDArray[np.int64]:
        """Return the ids of a column, selected by its number, as they appear in the output."""
        begin = self._offsets[number] if self._offsets else 0
        placed: npt.NDArray[np.int64] = np.add(ids, begin, dtype=np.int64)
        return placed

    @staticmethod
    def _typed(values: Any, column: Column) -> npt.NDArray[Any]:
        made: npt.NDArray[Any] = values if column.gives_ids else arrays.numbers(values, column.name)
        return made

    def spec(self) -> dict[str, Any]:
        return {
            "columns": [each.spec() for each in self.columns],
            "single": self._single,
            "one_space": bool(self._offsets),
        }

    @staticmethod
    def output(spec: Mapping[str, Any]) -> Output:
        """Return the output of a declaration, the inverse of :meth:`spec`."""
        columns = [Column.from_spec(each) for each in spec["columns"]]
        if spec["one_space"]:
            return OneSpace(tuple(columns))
        if spec["single"]:
            return columns[0]
        return Shared(tuple(columns)) if columns[0].gives_ids else columns

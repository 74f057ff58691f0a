"""Whether rows of Arrow's formats can be used: what is damaged would end the process, not raise.

Arrow's ``validate(full=True)`` looks at each text alone, which takes half as long as LZ4 takes to
unpack them. Here a column of texts is looked at as a whole, and Arrow at what is not so simple.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pyarrow import types

_all, _greatest = np.logical_and.reduce, np.maximum.reduce
_ASCII = 128
_FEW_ROWS = 4000  # below, Arrow's way is as fast


class RowCheck:
    """Looks at all values that lead elsewhere in memory, and at texts.

    Attributes:
        is_flat: slices of rows are looked at alone, whatever they are cut from.
    """

    def __init__(self, schema: Any) -> None:
        kinds = dict(enumerate(schema.types))
        self._texts = {n: of for n, kind in kinds.items() if (of := _offsets_of(kind))}
        self._others = [n for n in kinds if n not in self._texts and not _is_number(kinds[n])]
        self.is_flat = all(types.is_primitive(kinds[n]) for n in self._others)

    def __call__(self, rows: Any) -> None:
        """Looks at a ``pyarrow.RecordBatch``.

        Raises:
            pyarrow.ArrowInvalid: a text is not UTF-8, or an offset or index is out of its bounds.
        """
        if len(rows) < _FEW_ROWS:
            rows.validate(full=True)
            return
        rows.validate()
        for place, offsets in self._texts.items():
            column = rows.column(place)
            if not _is_simple(column, offsets):
                column.validate(full=True)
        for place in self._others:
            rows.column(place).validate(full=True)


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _offsets_of(kind: Any) -> np.dtype[Any] | None:
    """The type of the offsets of texts; None: it is another type."""
    if types.is_string(kind) or types.is_binary(kind):
        return np.dtype("<i4")
    return np.dtype("<i8") if types.is_large_string(kind) or types.is_large_binary(kind) else None


def _is_simple(column: Any, kind: np.dtype[Any]) -> bool:
    """Whether texts follow each other within their buffer, and are ASCII."""
    _, offsets, content = column.buffers()
    if content is None:
        return False
    ends = np.frombuffer(offsets, kind, len(column) + 1, column.offset * kind.itemsize)
    first, last = int(ends[0]), int(ends[-1])
    # Methods of arrays pass through Python, which takes as long as the work.
    if not 0 <= first < last <= content.size or not _all(np.greater_equal(ends[1:], ends[:-1])):
        return False
    return bool(_greatest(np.frombuffer(content, np.uint8, last - first, first)) < _ASCII)

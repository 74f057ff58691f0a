"""Validates rows of Arrow's formats: damaged rows would crash the process without an exception.

Arrow's ``validate(full=True)`` checks each text separately, which takes half as long as LZ4 takes
to decompress them. Here a column of texts is checked as a whole, and Arrow checks the other
columns.
"""

from __future__ import annotations

from typing import Any

from pyarrow import types

from torch_edl import _core

_FEW_ROWS = 4000  # with fewer rows, Arrow's validation is as fast


class RowCheck:
    """Checks all texts, and all values that refer to other places in memory.

    Attributes:
        is_flat: True if a slice can be validated independently of the rest of its batch.
    """

    def __init__(self, schema: Any) -> None:
        kinds = dict(enumerate(schema.types))
        self._texts = {n: w for n, kind in kinds.items() if (w := _is_wide(kind)) is not None}
        self._others = [n for n in kinds if n not in self._texts and not _is_number(kinds[n])]
        self.is_flat = all(types.is_primitive(kinds[n]) for n in self._others)

    def __call__(self, rows: Any) -> None:
        """Validate a ``pyarrow.RecordBatch``.

        Raises:
            pyarrow.ArrowInvalid: a text is not UTF-8, or an offset or index is out of its bounds.
        """
        if len(rows) < _FEW_ROWS:
            rows.validate(full=True)
            return
        rows.validate()
        for place, wide in self._texts.items():
            column = rows.column(place)
            if not _is_simple(column, wide):
                column.validate(full=True)
        for place in self._others:
            rows.column(place).validate(full=True)


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_wide(kind: Any) -> bool | None:
    """Return True if offsets of texts have 64 bits; None if the type is no text."""
    if types.is_string(kind) or types.is_binary(kind):
        return False
    return True if types.is_large_string(kind) or types.is_large_binary(kind) else None


def _is_simple(column: Any, wide: bool) -> bool:
    """Return True if the texts are contiguous within their buffer and ASCII."""
    _, offsets, content = column.buffers()
    if content is None:
        return False
    try:
        return _core.Texts(offsets, content, None, column.offset, len(column), wide).is_ascii
    except ValueError:
        return False

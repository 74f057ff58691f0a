"""Records that are in memory already: a notebook, a test, a ``data_source`` of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_edl.data.sources.base import Metadata, Records
from torch_edl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


class IndexedSource:
    """A :class:`Source` over a sequence of ``bytes``, or over the rows of a ``pyarrow.Table``.

    The sequence may be lazy: only ``len`` and ``[i]`` are used, from several threads.
    """

    def __init__(self, records: Sequence[bytes] | pa.Table, name: str = "memory") -> None:
        self._records: Any = records
        self._name = name
        schema = getattr(records, "schema", None)
        self._is_table = schema is not None
        self._metadata = (
            Metadata(name)
            if schema is None
            else Metadata(name, tuple(schema.names), tuple(map(str, schema.types)))
        )

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    @property
    def count(self) -> int:
        """Length of the sequence or table."""
        return len(self._records)

    @property
    def damaged(self) -> int:
        """0: what is in memory is not damaged."""
        return 0

    @property
    def metadata(self) -> Metadata:
        """Name, and for a table the names and types of the columns."""
        return self._metadata

    def read(self, start: int, end: int) -> Records:
        """The records ``start .. end - 1``: a new list, or a slice of the table without copying.

        Raises:
            DataError: the range is not within ``0 .. count``.
        """
        if not 0 <= start <= end <= self.count:
            raise DataError(self._name, f"asked for records {start} to {end} of {self.count}")
        if self._is_table:
            return self._records.slice(start, end - start)
        return [self._records[i] for i in range(start, end)]

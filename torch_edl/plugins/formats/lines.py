"""Files of one record per line, read as ``pyarrow.Table`` with the same types everywhere.

A block is about half a megabyte of whole lines. The scan parses every block once: that counts the
records, finds malformed ones before training starts, and fixes the type of each column over the
whole file.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from torch_edl.data.sources.files.blocks import BlockSource
from torch_edl.data.sources.files.index import Index, cached
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.errors import DataError
from torch_edl.interfaces import Metadata, Records

BLOCK_BYTES = 512 << 10

MAX_LINE_BYTES = 64 << 20
"""A longer line is taken for damage."""


class MalformedError(Exception):
    """Lines that cannot be parsed: why, and which of the records, if that is known."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row


class LineSource(BlockSource):
    """A format says how lines become a table.

    Attributes:
        schema: ``pyarrow.Schema`` of all records.
    """

    schema: Any
    has_comments = False
    """Lines that begin with ``#`` are no records."""

    def __init__(self, path: str, kind: str, *, skip_damaged: bool = False) -> None:
        """Opens and scans ``path`` (absolute, or a URL).

        Raises:
            DataError: unreadable, or a malformed record (with ``skip_damaged`` such records are
                left out).
        """
        self._skip_damaged = skip_damaged
        index, stamp = cached(path, kind, skip_damaged, self._scan)
        serialized = base64.b64decode(index.details["schema"])
        self.schema = pa.ipc.read_schema(pa.py_buffer(serialized))
        super().__init__(stamp, index, Metadata.of(path, self.schema))

    @abstractmethod
    def inferred(self, block: bytes) -> Any:
        """The table of whole lines, with types that these lines alone give.

        Raises:
            MalformedError: see there.
        """

    @abstractmethod
    def parsed(self, block: bytes) -> Any:
        """The table of whole lines, with :attr:`schema`.

        Raises:
            MalformedError: see there.
        """

    @abstractmethod
    def merged(self, before: Any, found: Any) -> Any:
        """The schema to which the records of both schemas can be read.

        Raises:
            MalformedError: there is none.
        """

    def empty(self) -> Records:
        """A table of no rows with the columns of the file."""
        return self.schema.empty_table()

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """The records of a block as a table."""
        try:
            rows = self._sound(file.read_at(offset, length), self.parsed)[0]
        except MalformedError as error:
            raise DataError(file.path, str(error), offset) from error
        if len(rows) != count:
            raise DataError(file.path, f"{len(rows)} records, the scan saw {count}", offset)
        return rows

    def _scan(self, file: DataFile) -> Index:
        schema = None
        blocks = []
        damaged = count = lines = 0
        for offset, block in _line_blocks(file):
            try:
                rows, lost = self._sound(block, self.inferred)
                if len(rows):
                    schema = rows.schema if schema is None else self.merged(schema, rows.schema)
            except MalformedError as error:
                where = f"record {count + (error.row or 0):,}"
                if error.row is None:
                    raise DataError(
                        file.path, f"{where} or one behind it: {error}", offset
                    ) from error
                line = lines + self._line_of(block, error.row)
                raise DataError(file.path, f"line {line:,}: {error}") from error
            lines += block.count(b"\n")
            damaged += lost
            count += len(rows)
            blocks.append((offset, len(block), len(rows)))
        schema = pa.schema([]) if schema is None else schema
        if count and not schema.names:
            raise DataError(file.path, "no record has a field", 0)
        serialized = base64.b64encode(schema.serialize().to_pybytes()).decode()
        return Index.of(blocks, damaged, schema=serialized)

    def _line_of(self, block: bytes, row: int) -> int:
        """The line of a block, from 1, that has a record."""
        texts = (line.strip() for line in block.split(b"\n"))
        full = [
            number
            for number, text in enumerate(texts, 1)
            if text and not (self.has_comments and text.startswith(b"#"))
        ]
        # What follows a record on its line is one more to the parser.
        return full[min(row, len(full) - 1)]

    def _sound(self, block: bytes, parse: Callable[[bytes], Any]) -> tuple[Any, int]:
        """The table of a block, and how many malformed records were left out of it."""
        try:
            return parse(block), 0
        except MalformedError:
            if not self._skip_damaged:
                raise
        lines = [line for line in block.splitlines(keepends=True) if line.strip()]
        kept = [line for line in lines if self._is_sound(line)]
        return parse(b"".join(kept)), len(lines) - len(kept)

    def _is_sound(self, line: bytes) -> bool:
        try:
            self.inferred(line)
        except MalformedError:
            return False
        return True


def _line_blocks(file: DataFile) -> Iterator[tuple[int, bytes]]:
    """Offset and content of blocks of whole lines."""
    start = 0
    while start < file.size:
        size = BLOCK_BYTES
        while True:
            block = file.read_at(start, min(size, file.size - start))
            end = len(block) if start + len(block) == file.size else block.rfind(b"\n") + 1
            if end:
                break
            if size >= MAX_LINE_BYTES:
                raise DataError(file.path, f"a line longer than {MAX_LINE_BYTES} bytes", start)
            size *= 2
        yield start, block[:end]
        start += end

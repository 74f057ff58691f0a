"""Files of one record per line, read as ``pyarrow.Table`` with the same types everywhere.

A block is about half a megabyte of whole lines. The scan parses every block once: it counts the
records, finds malformed ones before training starts, and determines the type of each column for the
whole file.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import BlockSource, Index, growing
from torch_edl.errors import DataError
from torch_edl.interfaces import Records

BLOCK_BYTES = 512 << 10

MAX_LINE_BYTES = 64 << 20
"""Longest line that is accepted, bytes; longer lines count as damage."""


class MalformedError(Exception):
    """Lines that cannot be parsed."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row
        """Number of the malformed record, from 0; None: unknown."""


class LineSource(BlockSource):
    """The base of formats with one record per line; a subclass turns lines into a table. With
    ``skip_damaged``, malformed records are left out."""

    has_comments = False
    """True if lines that begin with ``#`` are comments."""

    def prepare(self, details: dict[str, Any]) -> None:
        serialized = base64.b64decode(details["schema"])
        self.schema = pa.ipc.read_schema(pa.py_buffer(serialized))

    @abstractmethod
    def inferred(self, block: bytes) -> Any:
        """Return the table of whole lines, with types inferred from these lines alone; raise
        MalformedError if a record is malformed."""

    @abstractmethod
    def parsed(self, block: bytes) -> Any:
        """Return the table of whole lines, with the types of :attr:`schema`; see
        :meth:`inferred`."""

    @abstractmethod
    def merged(self, before: Any, found: Any) -> Any:
        """Return the schema to which records of both schemas can be converted; raise MalformedError
        if there is none."""

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        try:
            return self._sound(file.read_at(offset, length), self.parsed)[0]
        except MalformedError as error:
            raise DataError(file.path, str(error), offset) from error

    def scan(self, file: DataFile) -> Index:
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
        texts = (line.strip() for line in block.split(b"\n"))
        full = [
            number
            for number, text in enumerate(texts, 1)
            if text and not (self.has_comments and text.startswith(b"#"))
        ]
        # The parser counts anything after a record on its line as another record.
        return full[min(row, len(full) - 1)]

    def _sound(self, block: bytes, parse: Callable[[bytes], Any]) -> tuple[Any, int]:
        try:
            return parse(block), 0
        except MalformedError:
            if not self.skip_damaged:
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
    start = 0
    while start < file.size:
        for block, whole in growing(file, start, BLOCK_BYTES, MAX_LINE_BYTES):
            end = len(block) if whole else block.rfind(b"\n") + 1
            if end:
                break
        if not end:
            raise DataError(file.path, f"a line longer than {MAX_LINE_BYTES} bytes", start)
        yield start, block[:end]
        start += end

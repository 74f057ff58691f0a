"""Avro container files, read by fastavro as ``pyarrow.Table``.

A block is about half a megabyte of whole Avro blocks. The scan reads only their sizes.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import MAX_RECORD_BYTES, BlockSource, Index
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Records
from torch_edl.plugins.formats.avro_schema import arrow_schema

try:
    import fastavro
except ImportError as error:
    raise UsageError("Avro files: fastavro is missing: pip install 'torch-edl[avro]'") from error

log = logging.getLogger(__name__)

BLOCK_BYTES = 512 << 10

_SYNC_BYTES = 16


class AvroSource(BlockSource):
    """The records of an Avro container file. With ``skip_damaged``, blocks that cannot be decoded
    are left out, and a block of a wrong size ends the file."""

    kind = "avro"
    schema = pa.schema([])
    _texts: Sequence[str] = ()

    def prepare(self, details: dict[str, Any]) -> None:
        self._head = base64.b64decode(details["head"])
        if not self._head:
            return
        try:
            schema = fastavro.block_reader(io.BytesIO(self._head)).writer_schema
            self.schema, self._texts = arrow_schema(schema)
        except UsageError as error:
            raise DataError(self.name, str(error)) from error
        except Exception as error:  # fastavro checks few parts of a schema
            raise DataError(self.name, f"the schema cannot be read: {error!r}") from error

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        data = self._head + file.read_at(offset, length)
        try:
            records: list[Any] = list(fastavro.reader(io.BytesIO(data)))
            for name in self._texts:  # columns of UUIDs
                for record in records:
                    if record[name] is not None:
                        record[name] = str(record[name])
            rows = pa.Table.from_pylist(records, self.schema)
        except Exception as error:  # fastavro raises various exceptions for damaged data
            raise DataError(file.path, f"a block cannot be read: {error!r}", offset) from error
        if len(rows) != count:
            raise DataError(file.path, f"{len(rows)} records, the scan saw {count}", offset)
        return rows

    def scan(self, file: DataFile) -> Index:
        details = {"head": base64.b64encode(_head(file)).decode()}
        self.prepare(details)
        blocks: list[tuple[int, int, int]] = []
        damaged = records = 0
        first = offset = len(self._head)
        count = 0
        while offset < file.size:
            try:
                end, found = self._block_at(file, offset)
                if self.skip_damaged:
                    self.decode(file, offset, end - offset, found)
            except DataError as error:
                if not self.skip_damaged:
                    raise DataError(
                        file.path, f"record {records:,}: {error.reason}", offset
                    ) from error
                log.warning("left out: %s", error)
                blocks.append((first, offset - first, count))
                damaged += found if error.offset is not None else 1
                if error.offset is None:
                    first, count = offset, 0
                    break
                first, count, offset = end, 0, end
                continue
            offset = end
            count += found
            records += found
            if offset - first >= BLOCK_BYTES:
                blocks.append((first, offset - first, count))
                first, count = offset, 0
        blocks.append((first, offset - first, count))
        return Index.of(blocks, damaged, **details)

    def _block_at(self, file: DataFile, offset: int) -> tuple[int, int]:
        """Return the end of the Avro block at ``offset``, and its number of records.

        Raises:
            DataError: without an offset, if no block begins here or its end mark is missing.
        """
        reader: Any = file.stream()
        reader.seek(offset)
        try:
            count: Any = fastavro.schemaless_reader(reader, "long", None)
            size: Any = fastavro.schemaless_reader(reader, "long", None)
        except Exception as error:
            raise DataError(file.path, f"no block begins here: {error!r}") from error
        end = reader.tell() + size + _SYNC_BYTES
        if count < 0 or not 0 <= size <= MAX_RECORD_BYTES or end > file.size:
            raise DataError(file.path, f"a block of {count} records and {size} bytes")
        if file.read_at(end - _SYNC_BYTES, _SYNC_BYTES) != self._head[-_SYNC_BYTES:]:
            raise DataError(file.path, "a block without the mark of its end")
        return end, count


def _head(file: DataFile) -> bytes:
    """Return the header of the file; empty for an empty file."""
    if not file.size:
        return b""
    reader: Any = file.stream()
    try:
        fastavro.block_reader(reader)
    except Exception as error:
        raise DataError(file.path, f"no Avro file: {error!r}", 0) from error
    return file.read_at(0, reader.tell())

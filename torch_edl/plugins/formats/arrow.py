"""Arrow IPC files and streams, Feather, and the files of a Hugging Face dataset.

A block is a record batch. The scan reads the header of each message, but no body. Rows of an
uncompressed local file are slices of the mapped file, without a copy or a cache. Any other batch is
decoded as a whole; a batch above 32 MB is decoded once, to disk
(:mod:`~torch_edl.data.sources.files.sliced`).

Damaged rows would crash the process without an exception, so they are validated. Arrow's
``validate(full=True)`` checks each text separately, which takes half as long as LZ4 takes to
decompress them. Here a column of texts is checked as a whole, and Arrow checks the other columns.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import types

from torch_edl import _core
from torch_edl.data.sources.data_file import KEPT_MAP_BYTES, DataFile
from torch_edl.data.sources.files.blocks import Index
from torch_edl.data.sources.files.sliced import SlicedSource
from torch_edl.errors import DataError
from torch_edl.interfaces import Records
from torch_edl.plugins.formats.arrow_messages import FILE_MAGIC, ArrowMessage, messages

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


SLICE_BYTES = 2 << 20
"""Bytes of a large batch that are written to disk at a time."""

# One thread, since the training step uses the other cores.
_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)


class ArrowSource(SlicedSource):
    """The rows of a file of Arrow's IPC formats. With ``skip_damaged``, damaged batches are left
    out."""

    kind = "arrow"
    is_scanned_in_order = False  # one request per header, none for the bodies
    schema = pa.schema([])
    _is_sliceable = False

    def fetch(
        self, file: DataFile, block: tuple[int, int, int], start: int, end: int
    ) -> tuple[Records, Any]:
        if not self._is_sliceable:
            return super().fetch(file, block, start, end)
        rows = self._batch(file, *block).slice(start, end - start)
        return pa.Table.from_batches([self._validated(file, block[0], rows)]), None

    def slices(self, file: DataFile, offset: int, length: int, count: int) -> Iterator[Any]:
        batch = self._validated(file, offset, self._batch(file, offset, length, count))
        rows = max(1, SLICE_BYTES * count // max(length, 1))
        for start in range(0, count, rows):
            yield batch.slice(start, rows)

    def _batch(self, file: DataFile, offset: int, length: int, count: int) -> Any:
        try:
            if self._is_sliceable:
                batch = pa.ipc.read_record_batch(
                    pa.py_buffer(file.view_at(offset, length)), self.schema
                )
            elif self._dictionaries or file.local_path is None:
                dictionaries = (file.read_at(*place) for place in self._dictionaries_of(offset))
                parts: list[bytes | memoryview] = [
                    self._head,
                    *dictionaries,
                    file.view_at(offset, length),
                ]
                stream = pa.BufferReader(b"".join(parts))
                batch = pa.ipc.open_stream(stream, options=_ONE_THREAD).read_next_batch()
            else:
                # A stream reader reads the message at the current position of the stream.
                stream, reader = file.reader or self._stream(file)
                stream.seek(offset)
                batch = reader.read_next_batch()
        except (pa.ArrowException, OSError, ValueError) as error:
            file.reader = None
            raise DataError(file.path, f"a batch cannot be read: {error}", offset) from error
        if len(batch) != count:
            raise DataError(file.path, f"{len(batch)} rows, the scan saw {count}", offset)
        return batch

    def _stream(self, file: DataFile) -> tuple[Any, Any]:
        stream = pa.BufferReader(file.view_at(0, file.size))
        stream.seek(self._head_at)
        opened = stream, pa.ipc.open_stream(stream, options=_ONE_THREAD)
        if file.size <= KEPT_MAP_BYTES:
            file.reader = opened
        return opened

    def _validated(self, file: DataFile, offset: int, rows: Any) -> Any:
        try:
            self._check(rows)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(file.path, f"a batch cannot be read: {error}", offset) from error
        return rows

    def _dictionaries_of(self, batch: int) -> list[tuple[int, int]]:
        """Return offset and length of the dictionaries of the batch at byte ``batch``.

        In a stream, a dictionary precedes its batches, and a later one may replace it.
        """
        live: dict[int, list[tuple[int, int]]] = {}
        for offset, length, identity, is_delta in self._dictionaries:
            if offset < batch or self._is_file:
                places = live.setdefault(identity, [])
                if not is_delta:
                    places.clear()
                places.append((offset, length))
        return [place for places in live.values() for place in places]

    def prepare(self, details: dict[str, Any]) -> None:
        self._is_file: bool = details["is_file"]
        self._dictionaries: list[tuple[int, int, int, bool]] = details["dictionaries"]
        self._head = base64.b64decode(details["schema"])
        self._head_at: int = details["schema_at"]
        if not self._head:
            return
        try:
            stored = pa.ipc.read_schema(pa.py_buffer(self._head))
            # The stream reader converts numbers that a big-endian machine wrote.
            self.schema = pa.ipc.open_stream(pa.py_buffer(self._head)).schema
            self.schema.names  # noqa: B018 - fails if a name is not UTF-8
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(self.name, f"the schema cannot be read: {error}") from error
        self._check = RowCheck(self.schema)
        # For a nested column, validation of any slice would read the whole batch.
        self._is_sliceable = (
            not self.is_far
            and not details["is_compressed"]
            and self._check.is_flat
            and stored.equals(self.schema)
        )

    def scan(self, file: DataFile) -> Index:
        found = list(messages(file))
        schemas = [m for m in found if m.kind == "schema"]
        if found and (len(schemas) != 1 or found[0].kind != "schema"):
            raise DataError(file.path, "not one schema, at the beginning")
        dictionaries = [
            (m.offset, m.length, m.dictionary, m.is_delta) for m in found if m.kind == "dictionary"
        ]
        head = file.read_at(schemas[0].offset, schemas[0].length) if schemas else b""
        details: dict[str, Any] = {
            "is_file": file.read_at(0, min(6, file.size)) == FILE_MAGIC,
            "schema": base64.b64encode(head).decode(),
            "schema_at": schemas[0].offset if schemas else 0,
            "is_compressed": any(m.is_compressed for m in found),
            "dictionaries": dictionaries,
        }
        batches = [m for m in found if m.kind == "batch"]
        damaged = 0
        if self.skip_damaged:
            self.prepare(details)
            kept = [m for m in batches if self._is_sound(file, m)]
            damaged = sum(m.rows for m in batches) - sum(m.rows for m in kept)
            batches = kept
        return Index.of([(m.offset, m.length, m.rows) for m in batches], damaged, **details)

    def _is_sound(self, file: DataFile, batch: ArrowMessage) -> bool:
        try:
            for _ in self.slices(file, batch.offset, batch.length, batch.rows):
                pass
        except DataError:
            return False
        return True

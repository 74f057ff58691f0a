"""Reads the headers of messages of Arrow's IPC formats, without their bodies.

pyarrow reads a message only together with its body. The size of a record batch, in rows and in
bytes, stands in the flatbuffer before the body:
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import MAX_BLOCK_RECORDS
from torch_edl.errors import DataError

FILE_MAGIC = b"ARROW1"

_CONTINUES = 0xFFFFFFFF
_HEAD_BYTES = 4096  # bytes read at once; most flatbuffers are shorter
_MAX_HEAD_BYTES = 256 << 20

_KINDS = {1: "schema", 2: "dictionary", 3: "batch"}
_VERSION, _KIND, _HEADER, _BODY_BYTES = range(4)  # fields of a message, by number
_ROWS, _, _, _COMPRESSION = range(4)  # fields of a record batch, by number
_ID, _, _IS_DELTA = range(3)  # fields of a dictionary batch, by number


@dataclass(frozen=True)
class ArrowMessage:
    """A message of a file or stream."""

    kind: str
    """``schema``, ``dictionary`` or ``batch``."""
    offset: int
    """Offset of the message in the file, bytes."""
    length: int
    """Length of the message with its body, bytes."""
    rows: int = 0
    """Number of rows of a batch; 0 for other kinds."""
    dictionary: int = 0
    """Id of a dictionary; 0 for other kinds."""
    is_delta: bool = False
    """True if a dictionary extends the earlier one of its id instead of replacing it."""
    is_compressed: bool = False
    """True if the buffers of a batch are compressed."""


def messages(file: DataFile) -> Iterator[ArrowMessage]:
    """Yield all messages of a file or a stream.

    Raises:
        DataError: the file is in no supported format, or ends within a message.
    """
    magic = file.read_at(0, min(8, file.size))
    is_file = magic.startswith(FILE_MAGIC)
    if magic.startswith(b"FEA1"):
        raise DataError(
            file.path, "Feather version 1; write it again with pyarrow.feather.write_feather"
        )
    if is_file and file.read_at(max(0, file.size - 6), min(6, file.size)) != FILE_MAGIC:
        raise DataError(file.path, "the file has no end: it was not written whole")
    offset = 8 if is_file else 0
    while offset < file.size:
        found = _message_at(file, offset)
        if found is None:
            return
        yield found
        offset += found.length


def _message_at(file: DataFile, offset: int) -> ArrowMessage | None:
    """Return the message at ``offset``; None at the end mark."""
    head = file.read_at(offset, min(_HEAD_BYTES, file.size - offset))
    try:
        (size,) = struct.unpack_from("<I", head)
        begin = 4
        if size == _CONTINUES:  # the marker is missing before version 0.15
            (size,) = struct.unpack_from("<I", head, 4)
            begin = 8
        if size == 0:
            return None
        if size > _MAX_HEAD_BYTES or offset + begin + size > file.size:
            raise DataError(file.path, f"no message: a header of {size} bytes", offset)
        if begin + size > len(head):
            head = file.read_at(offset, begin + size)
        table = _Table.root(head[begin : begin + size])
        kind = _KINDS.get(table.number(_KIND, "<B"), "")
        body = table.number(_BODY_BYTES, "<q")
        header = table.table(_HEADER)
        length = begin + size + body
        if not kind or body < 0 or offset + length > file.size:
            raise DataError(file.path, "a message is cut off or damaged", offset)
        if kind == "batch":
            rows = header.number(_ROWS, "<q")
            if not 0 <= rows <= MAX_BLOCK_RECORDS:
                raise DataError(file.path, f"a batch of {rows} rows", offset)
            compressed = header.has(_COMPRESSION)
            return ArrowMessage(kind, offset, length, rows=rows, is_compressed=compressed)
        if kind == "dictionary":
            identity, delta = header.number(_ID, "<q"), bool(header.number(_IS_DELTA, "<B"))
            return ArrowMessage(kind, offset, length, dictionary=identity, is_delta=delta)
        return ArrowMessage(kind, offset, length)
    except struct.error as error:
        raise DataError(file.path, "a message is cut off or damaged", offset) from error


class _Table:
    """A table in a flatbuffer. Access outside the buffer raises struct.error."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - self._at("<i", place)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        (place,) = struct.unpack_from("<I", data)
        return cls(data, place)

    def number(self, field: int, kind: str) -> int:
        """Return a number field that has the format ``kind`` of ``struct``; 0 if the field is
        absent."""
        place = self._place_of(field)
        return self._at(kind, place) if place else 0

    def table(self, field: int) -> _Table:
        place = self._place_of(field)
        if not place:
            raise struct.error("no header")
        return _Table(self._data, place + self._at("<I", place))

    def has(self, field: int) -> bool:
        return self._place_of(field) > 0

    def _place_of(self, field: int) -> int:
        entry = 4 + 2 * field
        if entry >= self._at("<H", self._fields):
            return 0
        offset = self._at("<H", self._fields + entry)
        return self._place + offset if offset else 0

    def _at(self, kind: str, place: int) -> int:
        if place < 0:  # would count from the end of the buffer
            raise struct.error("out of the buffer")
        value: int = struct.unpack_from(kind, self._data, place)[0]
        return value

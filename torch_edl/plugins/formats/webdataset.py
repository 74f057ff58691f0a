"""WebDataset: a tar file in which consecutive members with one key form a sample.

The key is the name up to the first dot of its last part; the rest is the name of a column. A record
has the column ``__key__`` (text), and a column of bytes for each extension in the file, null if the
sample has no such member. A block is about a megabyte of whole samples.
"""

from __future__ import annotations

import io
import logging
import re
import tarfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files.blocks import MAX_RECORD_BYTES, BlockSource, Index
from torch_edl.errors import DataError
from torch_edl.interfaces import Records

log = logging.getLogger(__name__)

KEY = "__key__"

_NAME = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]+)")
_TAR_BLOCK = 512

# Exceptions of tarfile for damaged files: IndexError if the map of a sparse member is cut off,
# RecursionError at a thousand headers of one member.
_TAR_ERRORS = (
    tarfile.TarError,
    EOFError,
    ValueError,
    OverflowError,
    IndexError,
    RecursionError,
)


class TarMember(NamedTuple):
    """A member of a sample."""

    key: str
    extension: str
    header: tarfile.TarInfo
    """Header with the ``size`` of the content; a sparse member occupies less in the file."""
    end: int
    """Offset of the next header, bytes."""

    def content(self, data: bytes) -> bytes:
        """Return the content of the member, with zeros in the holes of a sparse member.

        Args:
            data: the bytes to which the offsets of the member refer.
        """
        place, size = self.header.offset_data, self.header.size
        if not self.header.issparse():
            return data[place : place + size]
        parts, filled = [], 0
        for offset, length in _parts_of(self.header):
            parts += [bytes(offset - filled), data[place : place + length]]
            place, filled = place + length, offset + length
        return b"".join([*parts, bytes(size - filled)])


def _parts_of(header: tarfile.TarInfo) -> list[tuple[int, int]]:
    """Return offset and length of the parts of a sparse member that are stored in the file."""
    parts: Any = header.sparse
    return [part for part in parts if part[1]]  # an empty part marks the size, or fills the header


def _check_sparse(header: tarfile.TarInfo, end: int) -> None:
    """Raise ValueError if the parts overlap, or reach beyond the content or the member."""
    filled = stored = 0
    for offset, length in _parts_of(header):
        if length < 0 or offset < filled:
            raise ValueError(f"{header.name}: a sparse member with overlapping parts")
        filled, stored = offset + length, stored + length
    if filled > header.size or stored > end - header.offset_data:
        raise ValueError(f"{header.name}: a sparse member with parts beyond its end")


class WebDatasetSource(BlockSource):
    """The samples of a tar file. With ``skip_damaged``, a damaged header ends the file."""

    kind = "webdataset"

    def scan(self, file: DataFile) -> Index:
        return _scan(file, self.block_bytes, self.skip_damaged)

    def prepare(self, details: dict[str, Any]) -> None:
        columns = [(name, pa.large_binary()) for name in details["columns"]]
        self.schema = pa.schema([(KEY, pa.string()), *columns] if columns else [])

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        columns: dict[str, list[Any]] = {name: [None] * count for name in self.schema.names}
        keys = columns[KEY]
        data = file.read_at(offset, length)
        row, last = -1, None
        for member in _members(file, data, offset):
            if member.key != last:
                row, last = row + 1, member.key
                if row == count:
                    break
                keys[row] = member.key
            columns[member.extension][row] = member.content(data)
        if row != count - 1:
            raise DataError(file.path, f"{row + 1} samples, the scan saw {count}", offset)
        return pa.table(columns, self.schema)


def _members(file: DataFile, data: bytes | None = None, offset: int = 0) -> Iterator[TarMember]:
    """Yield the members of samples, of a file or of ``data`` at ``offset`` of the file."""
    source: Any = file.stream() if data is None else io.BytesIO(data)
    size = file.size if data is None else len(data)
    if not size:
        return
    place = 0
    try:
        with tarfile.open(fileobj=source, mode="r:") as tar:
            while (header := tar.next()) is not None:
                place = header.offset
                tar.members = []  # type: ignore[attr-defined]  # which would grow with the file
                if header.size > MAX_RECORD_BYTES:
                    raise DataError(
                        file.path, f"{header.name}: {header.size} bytes", offset + place
                    )
                end = int(tar.offset)
                if header.issparse():
                    _check_sparse(header, end)
                found = _NAME.fullmatch(header.name) if header.isreg() else None
                if found is not None and not header.name.rpartition("/")[2].startswith("__"):
                    _check_name(file.path, header.name)
                    yield TarMember(found[1], found[2].lower(), header, end)
            place = int(tar.offset)
    except _TAR_ERRORS as error:
        raise DataError(file.path, f"no whole tar: {error}", offset + place) from error
    # tarfile treats a damaged header as the end.
    source.seek(place)
    if any(source.read(_TAR_BLOCK)):
        raise DataError(file.path, "the header of a member is damaged", offset + place)


def _check_name(path: str, name: str) -> None:
    """Raise DataError unless the name of a member is UTF-8, like keys and columns."""
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise DataError(
            path, f"member {shown}: the name is not UTF-8; rename the file, and write the tar again"
        ) from None


def _scan(file: DataFile, block_bytes: int, skip_damaged: bool) -> Index:
    columns: dict[str, None] = {}
    blocks: list[tuple[int, int, int]] = []
    begin = end = count = total = damaged = 0
    size = sample = 0  # bytes of content of the block and of the sample
    last: str | None = None
    seen: set[str] = set()
    try:
        for key, extension, header, stored_end in _members(file):
            if key != last:
                if max(size, end - begin) >= block_bytes:
                    blocks.append((begin, header.offset - begin, count))
                    begin, count, size = header.offset, 0, 0
                elif not count:
                    begin = header.offset
                last, count, total, sample = key, count + 1, total + 1, 0
                seen.clear()
            size, sample = size + header.size, sample + header.size
            wrong = ""
            if extension in seen or extension == KEY:
                wrong = f"two members {extension!r}"
            elif sample > MAX_RECORD_BYTES:
                wrong = f"more than {MAX_RECORD_BYTES} bytes"
            if wrong:
                raise DataError(file.path, f"record {total - 1:,} ({key}): {wrong}")
            seen.add(extension)
            columns[extension] = None
            end = min(stored_end, file.size)
    except DataError as error:
        if not skip_damaged or error.offset is None:
            raise
        log.warning("left out, with what follows: %s", error)
        damaged = 1
        # The last sample may lack members.
        if end + _TAR_BLOCK > file.size or count:
            end = min(end, error.offset)
    blocks.append((begin, end - begin, count))
    found = any(block[2] for block in blocks)
    return Index.of(blocks, damaged, columns=list(columns) if found else [])

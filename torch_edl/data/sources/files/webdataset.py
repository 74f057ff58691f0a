"""WebDataset: a tar whose consecutive members with one key make a sample.

The key is the name up to the first dot of its last part; what follows is the name of a column. A
record has the column ``__key__`` (text), and a column of bytes for each extension in the file, null
where the sample has no such member. A block is about a megabyte of whole samples.
"""

from __future__ import annotations

import io
import logging
import re
import tarfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from torch_edl.data.sources.base import Metadata, Records
from torch_edl.data.sources.files.blocks import MAX_RECORD_BYTES, BlockSource
from torch_edl.data.sources.files.index import Index, cached
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.errors import DataError

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20

KEY = "__key__"

_NAME = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]+)")
_TAR_BLOCK = 512

Member = tuple[str, str, tarfile.TarInfo]
"""Key, extension, and where it is."""


class WebDatasetSource(BlockSource):
    """The samples of a tar."""

    def __init__(self, path: str, *, skip_damaged: bool = False) -> None:
        """Opens ``path`` (absolute, or a URL) and finds its members.

        Raises:
            DataError: unreadable, no whole tar, or a sample with two members of one extension.
                With ``skip_damaged`` a damaged header ends the file.
        """

        def scan(file: DataFile) -> Index:
            return _scan(file, skip_damaged)

        index, stamp = cached(path, "webdataset", skip_damaged, scan)
        self._schema: Any = pa.schema(
            [(KEY, pa.string()), *((name, pa.large_binary()) for name in index.details["columns"])]
            if len(index.blocks)
            else []
        )
        super().__init__(stamp, index, Metadata.of(path, self._schema))

    def empty(self) -> Records:
        """A table of no rows with the columns of the file."""
        return self._schema.empty_table()

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        """The samples of a block as a table."""
        columns: dict[str, list[Any]] = {name: [None] * count for name in self._schema.names}
        keys = columns[KEY]
        data = file.read_at(offset, length)
        row, last = -1, None
        for key, extension, member in _members(file, data, offset):
            if key != last:
                row, last = row + 1, key
                if row == count:
                    break
                keys[row] = key
            begin = member.offset_data
            columns[extension][row] = data[begin : begin + member.size]
        if row != count - 1:
            raise DataError(file.path, f"{row + 1} samples, the scan saw {count}", offset)
        return pa.table(columns, self._schema)


def _members(file: DataFile, data: bytes | None = None, offset: int = 0) -> Iterator[Member]:
    """The members of samples, of a file or of ``data`` at ``offset`` of it.

    Raises:
        DataError: a damaged header, or the end of the file within a member.
    """
    source: Any = file.stream() if data is None else io.BytesIO(data)
    size = file.size if data is None else len(data)
    if not size:
        return
    place = 0
    try:
        with tarfile.open(fileobj=source, mode="r:") as tar:
            while (member := tar.next()) is not None:
                place = member.offset
                tar.members = []  # type: ignore[attr-defined]  # which would grow with the file
                if member.size > MAX_RECORD_BYTES:
                    raise DataError(
                        file.path, f"{member.name}: {member.size} bytes", offset + place
                    )
                found = _NAME.fullmatch(member.name) if member.isreg() else None
                if found is not None and not member.name.rpartition("/")[2].startswith("__"):
                    yield found[1], found[2].lower(), member
            place = int(tar.offset)
    except (tarfile.TarError, EOFError, ValueError, UnicodeError, OverflowError) as error:
        raise DataError(file.path, f"no whole tar: {error}", offset + place) from error
    # tarfile takes a damaged header for the end.
    source.seek(place)
    if any(source.read(_TAR_BLOCK)):
        raise DataError(file.path, "the header of a member is damaged", offset + place)


def _scan(file: DataFile, skip_damaged: bool) -> Index:
    columns: dict[str, None] = {}
    blocks: list[tuple[int, int, int]] = []
    begin = end = count = total = damaged = 0
    last: str | None = None
    seen: set[str] = set()
    try:
        for key, extension, member in _members(file):
            if key != last:
                if end - begin >= BLOCK_BYTES:
                    blocks.append((begin, member.offset - begin, count))
                    begin, count = member.offset, 0
                elif not count:
                    begin = member.offset
                last, count, total = key, count + 1, total + 1
                seen.clear()
            if extension in seen or extension == KEY:
                raise DataError(
                    file.path, f"record {total - 1:,} ({key}): two members {extension!r}"
                )
            seen.add(extension)
            columns[extension] = None
            end = member.offset_data + -(-member.size // _TAR_BLOCK) * _TAR_BLOCK
            end = min(end, file.size)
    except DataError as error:
        if not skip_damaged or error.offset is None:
            raise
        log.warning("left out, with what follows: %s", error)
        damaged = 1
        # The sample before may lack members.
        if end + _TAR_BLOCK > file.size or count:
            end = min(end, error.offset)
    blocks.append((begin, end - begin, count))
    return Index.of(blocks, damaged, columns=list(columns))

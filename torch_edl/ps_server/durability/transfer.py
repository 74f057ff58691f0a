"""Transfer of a replica between a server and its peer: unsent records, the files of a base, and
records for a successor."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch_edl.errors import StateLostError
from torch_edl.ps_server.durability import records
from torch_edl.ps_server.durability.records import LogEntry, Piece, Record
from torch_edl.wire import codec
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.codec import Framed

PIECE_BYTES = 4 << 20
"""Maximum bytes of a file in one message."""
_BATCH_BYTES, _BATCH_PIECES = 32 << 20, 1024
_AT_ONCE = 4
"""Number of pieces in transfer, so that others are read and written meanwhile."""

Call = Callable[[Framed], Framed]
"""Calls the peer, in any thread; sets fence and owner. An exception ends the transfer."""


class Unsent:
    """Records that are not sent yet, at most ``most`` bytes. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: deque[tuple[int, LogEntry]] = deque()  # by number
        self._bytes = 0
        self.forgotten = 0
        """Number of the last record that was removed."""

    @property
    def newest(self) -> int:
        """Number of the newest record, sent or not; 0 before the first."""
        return self._entries[-1][0] if self._entries else self.forgotten

    def has_room(self, size: int) -> bool:
        """Return whether a record of that size fits; a first record always does."""
        return not self._entries or self._bytes + size <= self._most

    def is_half_full(self, size: int = 0) -> bool:
        """Return whether less than half of the room is left beside a record of that size."""
        return not self.has_room(size + self._most // 2)

    def append(self, number: int, entry: LogEntry) -> None:
        """Add the next record."""
        self._entries.append((number, entry))
        self._bytes += entry.size

    def batch(self, after: int, until: int) -> list[memoryview]:
        """Return records with numbers in ``(after, until]`` as they are stored in a segment, in
        pieces; limited in size, so the last ones may be missing."""
        pieces: list[memoryview] = []
        size = 0
        for number, entry in self._entries:
            if number <= after:
                continue
            if number > until:
                break
            few = len(entry.pieces) < _BATCH_PIECES
            of_entry = entry.pieces if few else (b"".join(entry.pieces),)
            if size and (
                len(pieces) + len(of_entry) >= _BATCH_PIECES or size + entry.size > _BATCH_BYTES
            ):
                break
            pieces += map(memoryview, (records.pack_head(number, entry), *of_entry))
            size += records.HEAD_BYTES + entry.size
        return pieces

    def forget(self, last: int) -> None:
        """Remove the records up to ``last``: the peer has them."""
        while self._entries and self._entries[0][0] <= last:
            self._bytes -= self._entries.popleft()[1].size
        self.forgotten = max(self.forgotten, last)


def send(call: Call, folder: Path, sequence: int) -> None:
    """Send the files of a folder as the base with all records up to ``sequence``."""

    def piece(path: Path, at: int) -> None:
        content = read(path, at)
        request = pb.PutBaseRequest(sequence=sequence, file=path.name, offset=at)
        call(Framed(request, [memoryview(content)]))

    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    _for_each_piece(piece, folder, sizes)
    call(Framed(pb.PutBaseRequest(sequence=sequence, files=sizes)))


def fetch(call: Call, folder: Path, files: Mapping[str, int]) -> None:
    """Make a folder with the files of the peer's base, whose sizes in bytes it has announced; raise
    StateLostError if it sends less."""

    def piece(path: Path, at: int) -> None:
        wanted = min(PIECE_BYTES, files[path.name] - at)
        content = memoryview(b"")
        if wanted:
            content = _content(call(Framed(pb.FetchReplicaRequest(file=path.name, offset=at))))
        if len(content) < wanted:
            raise StateLostError(f"{path.name}: {len(content)} of {wanted} bytes at byte {at}")
        write(path, content, at)

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _for_each_piece(piece, folder, files)


def records_after(call: Call, number: int) -> Iterator[Record]:
    """Yield the records after number ``number`` from the peer. The next ones are fetched
    meanwhile."""

    def piece(after: int) -> memoryview:
        return _content(call(Framed(pb.FetchReplicaRequest(after=after))))

    with ThreadPoolExecutor(1, thread_name_prefix="records") as ahead:
        following = ahead.submit(piece, number)
        while content := following.result():
            following = ahead.submit(piece, records.last(content))
            yield from records.read([content])


def _content(answer: Framed) -> memoryview:
    return codec.frame(answer.frames, 1)


def _for_each_piece(
    do: Callable[[Path, int], None], folder: Path, sizes: Mapping[str, int]
) -> None:
    pieces = [
        (folder / name, at)
        for name, size in sizes.items()
        for at in range(0, max(size, 1), PIECE_BYTES)
    ]
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="base")
    try:
        for _ in pool.map(lambda piece: do(*piece), pieces):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def write(path: Path, content: Piece, at: int) -> None:
    """Write a piece at its position in a file, which is created if missing."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        view = memoryview(content)
        while view:
            written = os.pwrite(file, view, at)
            view, at = view[written:], at + written
    finally:
        os.close(file)


def read(path: Path, at: int) -> bytes:
    """Return the piece of a file at a position; shorter at the end of the file."""
    with open(path, "rb") as file:
        return os.pread(file.fileno(), PIECE_BYTES, at)

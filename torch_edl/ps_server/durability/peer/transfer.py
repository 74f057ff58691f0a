"""Transfer of a replica between a server and its peer: the files of a base, and records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch_edl.errors import StateLostError
from torch_edl.ps_server.durability import records
from torch_edl.ps_server.durability.records import Piece, Record
from torch_edl.wire import codec
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.codec import Framed

PIECE_BYTES = 4 << 20
"""Maximum bytes of a file in one message."""
_AT_ONCE = 4
"""Number of pieces in transfer, so that others are read and written meanwhile."""

Call = Callable[[Framed], Framed]
"""Calls the peer, in any thread; sets fence and owner. An exception ends the transfer."""


def send(call: Call, folder: Path, sequence: int, newest: int) -> None:
    """Send the files of a folder as the base with all records up to ``sequence``, and in parts
    those up to ``newest``."""

    def piece(path: Path, at: int) -> None:
        content = read(path, at)
        request = pb.PutBaseRequest(sequence=sequence, file=path.name, offset=at)
        call(Framed(request, [memoryview(content)]))

    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    _for_each_piece(piece, folder, sizes)
    call(Framed(pb.PutBaseRequest(sequence=sequence, files=sizes, newest=newest)))


def fetch(call: Call, folder: Path, files: Mapping[str, int]) -> None:
    """Make a folder with the files of the peer's base.

    Args:
        files: size in bytes by name.

    Raises:
        StateLostError: the peer sent less than it announced.
    """

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

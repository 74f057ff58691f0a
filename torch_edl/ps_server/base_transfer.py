"""The files of a base on their way between a server and its peer, in pieces."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch_edl.errors import StateLostError
from torch_edl.wire import replica_pb2 as pb

PIECE_BYTES = 8 << 20
"""Of a file in one message."""

Call = Callable[[Any], Any]
"""Calls the peer; fence and owner are filled in. What it raises ends the transfer."""


def send(call: Call, folder: Path, sequence: int, newest: int) -> None:
    """Sends the files of a folder as the base that has the records up to a number, and parts of
    which have more, up to ``newest``."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    for name, size in sizes.items():
        with open(folder / name, "rb") as file:
            for at in range(0, max(size, 1), PIECE_BYTES):
                content = file.read(PIECE_BYTES)
                call(pb.PutBaseRequest(sequence=sequence, file=name, offset=at, content=content))
    call(pb.PutBaseRequest(sequence=sequence, files=sizes, newest=newest))


def fetch(call: Call, folder: Path, files: Mapping[str, int]) -> None:
    """Makes a folder with the files of the base that the peer has.

    Args:
        files: name to size in bytes.

    Raises:
        StateLostError: the peer has less than it said.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, size in files.items():
        at = 0
        with open(folder / name, "wb") as file:
            while at < size:
                content = call(pb.FetchReplicaRequest(file=name, offset=at)).content
                if not content:
                    raise StateLostError(f"{name}: ends at byte {at} of {size} at the peer")
                at += file.write(content)

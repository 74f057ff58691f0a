"""Frames in memory that a client shares with a server of its machine.

The client creates the memory of a connection, and reserves places for the frames of its calls and
of the answers. Both sides then read and write the frames in place, and only messages are sent. The
memory begins with random bytes that the client also sends, so a server never takes the memory of
another process for that of its client. The memory of a lost connection is never used again, so a
server that still writes an answer there does no harm. It is a file without a name, which the kernel
frees when the client has ended and the server, within a minute, has released it.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.wire import data_plane_pb2 as pb
from torch_edl.wire.codec import Framed, Room

Bytes = npt.NDArray[np.uint8]

_MEMORY_BYTES = 4 << 30  # limit for the calls in flight; the kernel provides what is used
_LEAST_BYTES = 2048  # smaller frames are sent
_NONCE_BYTES = 16


class ClientMemory:
    """The memory of a client's connection. Raises OSError if there is no memory."""

    def __init__(self) -> None:
        self.core = _core.SharedMemory(_MEMORY_BYTES)
        nonce = self.core.allocate(_NONCE_BYTES)  # never released, so no frame gets this place
        assert nonce is not None
        assert self.core.position(nonce) == 0
        nonce[:] = np.frombuffer(secrets.token_bytes(_NONCE_BYTES), np.uint8)
        self._nonce = nonce

    def request(self) -> pb.AttachMemoryRequest:
        """Return the request that shares the memory."""
        nonce = self._nonce.tobytes()
        return pb.AttachMemoryRequest(pid=os.getpid(), file=self.core.file, nonce=nonce)

    def allocate(self, size: int) -> Bytes:
        """Return memory (size,), of the process alone if the shared memory is full."""
        found = self.core.allocate(size)
        return np.empty(size, np.uint8) if found is None else found

    def place(self, head: pb.DataRequest, request: Framed) -> tuple[list[Any], list[Any], Bytes]:
        """Put the frames of a call into the memory, and reserve room for its answer.

        Args:
            head: the message of the call, which gets the places.

        Returns:
            The frames that have to be sent; the frames in the memory, which must be kept until the
            call has ended; and the room, which may be empty.
        """
        sent: list[Any] = []
        kept: list[Any] = []
        places, sizes = [], []
        for frame in request.frames:
            size = len(frame)
            at = self.core.position(frame) if size >= _LEAST_BYTES else -1
            if at < 0 and size >= _LEAST_BYTES:
                copy = self.core.allocate(size)
                if copy is not None:
                    copy[:] = np.frombuffer(frame, np.uint8)
                    at, frame = self.core.position(copy), copy.data
            (sent if at < 0 else kept).append(frame)
            places.append(at)
            sizes.append(size)
        if kept:
            head.shared.places.extend(places)
            head.shared.sizes.extend(sizes)
        room = self.core.allocate(request.answer_bytes) if request.answer_bytes else None
        if room is None:
            room = np.empty(0, np.uint8)
        else:
            head.room_at, head.room_bytes = self.core.position(room), len(room)
        return sent, kept, room

    def answered(self, places: pb.SharedFrames, sent: Sequence[Any], room: Bytes) -> list[Any]:
        """Return the frames of an answer.

        Raises:
            UsageError: a place is not in the room of the call.
        """
        start = self.core.position(room)

        def view(at: int, size: int) -> memoryview:
            begin = at - start
            if begin < 0 or size < 0 or begin + size > len(room):
                raise UsageError(f"a frame of {size} bytes at {at}: not in the room of the answer")
            return room[begin : begin + size].data

        return list(_frames(places, sent, view))


class AttachedMemories:
    """The memories of the clients of a server, by the identity of the connection."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[str, int, _core.SharedMemory]] = {}

    def attach(self, sender: bytes, request: pb.AttachMemoryRequest) -> None:
        """Map the memory of a client.

        In another PID namespace, the pid of the client may belong to another process, which may be
        a client, too. The memory therefore begins with the nonce of the request.

        Raises:
            UsageError: the memory cannot be opened, is not sealed, or is of another process.
        """
        self.release_ended()
        path = f"/proc/{request.pid}/fd/{request.file}"
        try:
            memory = _core.SharedMemory.open(path)
            found = memory.view(0, _NONCE_BYTES).tobytes()
        except (OSError, ValueError) as error:
            raise UsageError(f"the memory of the client: {error}") from None
        if not hmac.compare_digest(found, request.nonce):
            raise UsageError(
                f"the memory of the client: {path} is of another process; the client is in another "
                "PID namespace"
            )
        self._open[sender] = path, _inode(path), memory

    def release_ended(self) -> None:
        """Release the memories of clients that have ended."""
        for other, (path, inode, _) in list(self._open.items()):
            if _inode(path) != inode:
                self._open.pop(other, None)  # another thread may do the same

    def find(self, sender: bytes) -> _core.SharedMemory | None:
        """Return the memory of a client; None if it shares none."""
        found = self._open.get(sender)
        return found and found[2]


def received(
    memory: _core.SharedMemory | None, head: pb.DataRequest, message: Any, sent: Sequence[Any]
) -> Framed:
    """Return a call with its frames, and the room for the frames of its answer.

    Raises:
        UsageError: a place is not in the memory of the client.
    """
    if memory is None:
        if head.shared.places or head.room_bytes:
            raise UsageError("frames in memory that is not attached; attach it first")
        return Framed(message, list(sent))
    try:
        frames = list(_frames(head.shared, sent, lambda at, size: memory.view(at, size).data))
        room = Room(memory.view(head.room_at, head.room_bytes)) if head.room_bytes else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Framed(message, frames, room=room, lent=bool(head.shared.places))


def put_places(
    memory: _core.SharedMemory, head: pb.DataRequest, answer: pb.DataAnswer, frames: list[Any]
) -> list[Any]:
    """Name the places of those frames of an answer that are in the room of the call; return the
    frames to send."""
    if not head.room_bytes:
        return frames
    begin, end = head.room_at, head.room_at + head.room_bytes
    found = [memory.position(frame) for frame in frames]
    places = [at if begin <= at < end else -1 for at in found]
    if max(places, default=-1) < 0:
        return frames
    answer.shared.places.extend(places)
    answer.shared.sizes.extend(map(len, frames))
    return [frame for frame, at in zip(frames, places, strict=True) if at < 0]


def _frames(places: pb.SharedFrames, sent: Sequence[Any], view: Any) -> Iterator[Any]:
    if not places.places:
        yield from sent
        return
    if len(places.places) != len(places.sizes):
        raise UsageError(f"{len(places.places)} places and {len(places.sizes)} sizes of frames")
    rest = iter(sent)
    for at, size in zip(places.places, places.sizes, strict=True):
        if at >= 0:
            yield view(at, size)
            continue
        try:
            yield next(rest)
        except StopIteration:
            raise UsageError("fewer frames than places") from None
    if next(rest, None) is not None:
        raise UsageError("more frames than places")


def _inode(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_ino
    return -1

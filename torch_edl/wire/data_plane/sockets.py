"""Common parts of both sides of the data plane: endpoints, keys and size limits.

Frames are sent over ZeroMQ. Connections within a machine use a Unix socket in a folder that other
users cannot enter. Connections between machines are encrypted (CURVE) with keys that are derived
from the token of the job. Each request carries a key derived from the token, too.

ZeroMQ has a single size limit, which also applies to handshakes: it allocates as much memory as an
unauthenticated client announces. Frames are therefore sent in small pieces between machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils import z85

from torch_edl.errors import UsageError
from torch_edl.wire.security.keys import derived

LOCAL = "ipc://"
MAX_FRAME_BYTES = 1 << 30
"""Largest size of a frame, as of a gRPC message."""
MAX_CALL_BYTES = (1 << 32) - 1
"""Largest size of a call or an answer with its frames, as of a record in the log of a server."""
PIECE_BYTES = 256 << 10
"""Size of the pieces of a frame between machines; the last piece is smaller, possibly empty. A
larger piece ends the connection, which limits the memory of an unauthenticated connection."""
_CURVE_BYTES = 64  # upper bound of the bytes that encryption adds to a piece
COPIED_BYTES = 1 << 20
"""Frames up to this size are copied for ZeroMQ. To send a frame without a copy, ZeroMQ must tell an
interpreter thread when the memory is free again, which takes three times as long as copying 256 KB:
with copies, a pull and a push of 4,000 rows x 16 take 0.9 ms instead of 1.6 ms of CPU in the
client, and 1.8 ms instead of 2.9 ms in the server. From about 1 MB on there is no difference."""


def prepare(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Set the limits of a socket that is to be bound or connected."""
    local = endpoint.startswith(LOCAL)
    socket.maxmsgsize = MAX_FRAME_BYTES if local else PIECE_BYTES + _CURVE_BYTES
    socket.copy_threshold = COPIED_BYTES


def require_sizes(frames: Sequence[Any]) -> None:
    """Check the sizes of the frames of a message.

    Raises:
        UsageError: a frame, or all frames together, are too large; the message names the limit.
    """
    total = sum(map(len, frames))
    if total <= MAX_FRAME_BYTES:
        return
    if max(map(len, frames)) > MAX_FRAME_BYTES:
        raise UsageError(f"a tensor of more than {MAX_FRAME_BYTES} bytes: use more --ps")
    if total > MAX_CALL_BYTES:
        raise UsageError(f"{total} bytes in one call, at most {MAX_CALL_BYTES}: use more --ps")


def cut(frames: Sequence[Any], endpoint: str) -> Sequence[Any]:
    """Cut the frames of a message into pieces, if the endpoint requires pieces."""
    if endpoint.startswith(LOCAL):
        return frames
    pieces: list[Any] = []
    for frame in frames:
        start = 0
        while len(frame) - start >= PIECE_BYTES:
            pieces.append(memoryview(frame)[start : start + PIECE_BYTES])
            start += PIECE_BYTES
        pieces.append(memoryview(frame)[start:] if start else frame)
    return pieces


def joined(pieces: Sequence[memoryview], endpoint: str) -> Iterator[memoryview]:
    """Return the frames that :func:`cut` has cut into pieces; they are joined one by one.

    Raises:
        UsageError: the last piece is missing, or a frame is too large.
    """
    return iter(pieces) if endpoint.startswith(LOCAL) else _joined(pieces)


def _joined(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    begun: list[memoryview] = []
    for piece in pieces:
        if len(piece) == PIECE_BYTES:
            begun.append(piece)
            if len(begun) > MAX_FRAME_BYTES // PIECE_BYTES:
                raise UsageError(f"a frame of more than {MAX_FRAME_BYTES} bytes")
        elif begun:
            yield memoryview(b"".join((*begun, piece)))
            begun = []
        else:
            yield piece
    if begun:
        raise UsageError("a frame without its last piece")


@dataclass(frozen=True)
class Keys:
    """The keys that are derived from the token of a job."""

    request: bytes
    """Key in each request."""
    server: bytes
    """Secret CURVE key of the servers, encoded in Z85."""
    client: bytes
    """Secret CURVE key of the clients, encoded in Z85."""

    @classmethod
    def of(cls, token: str) -> Keys:
        """Derive the keys from a token."""
        return cls(
            derived(token, b"edl-request"),
            z85.encode(derived(token, b"edl-server")),
            z85.encode(derived(token, b"edl-client")),
        )

    def secure_server(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Set the keys of a server's socket before it is bound."""
        if not endpoint.startswith(LOCAL):
            socket.curve_server = True
            socket.curve_secretkey = self.server

    def secure_client(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Set the keys of a client's socket before it is connected."""
        if not endpoint.startswith(LOCAL):
            socket.curve_serverkey = zmq.curve_public(self.server)
            socket.curve_secretkey = self.client
            socket.curve_publickey = zmq.curve_public(self.client)

"""Limit of unauthenticated connections: ZeroMQ itself only limits the time of a handshake."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

from torch_edl.wire.security.newcomers import Newcomers

# A server sends 64 bytes of greeting to every client, and more only to clients with its public key.
_GREETING_BYTES = 64
_ACKNOWLEDGED_AT = 120  # in the kernel's tcp_info: tcpi_bytes_acked
_EVENTS = zmq.Event.ACCEPTED | zmq.Event.CLOSED | zmq.Event.DISCONNECTED
_ACKNOWLEDGED = struct.Struct("<Q")


class Doorkeeper:
    """Watches the connections of a bound socket.

    The thread of the socket calls :meth:`heed` when :attr:`monitor` has events.

    Args:
        port: port of the socket.
        handshake_s: seconds after which ZeroMQ closes a connection with an incomplete handshake.
    """

    def __init__(self, bound: zmq.Socket[bytes], port: int, handshake_s: float) -> None:
        self.monitor = bound.get_monitor_socket(_EVENTS)
        self._bound, self._port, self._handshake_s = bound, port, handshake_s
        self._newcomers: Newcomers[int] = Newcomers()
        # Inode and time of each connection; the inode detects a reused file descriptor.
        self._seen: dict[int, tuple[int, float]] = {}

    def heed(self) -> None:
        """Handle the events of the monitor, and close surplus connections."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            self._forget(event["value"])
            if event["event"] == zmq.Event.ACCEPTED:
                self._take(event["value"])
        known_at = time.monotonic() - self._handshake_s
        for file in [file for file, (_, since) in self._seen.items() if since < known_at]:
            self._forget(file)

    def close(self) -> None:
        """End the watch."""
        self._bound.disable_monitor()
        self.monitor.close(0)

    def _take(self, file: int) -> None:
        with contextlib.suppress(OSError), _borrowed(file) as connection:
            if connection.getsockname()[1] != self._port:  # the descriptor was reused
                return
            self._seen[file] = os.fstat(file).st_ino, time.monotonic()
            surplus = self._newcomers.add(file, connection.getpeername()[0])
            if surplus is not None:
                self._dismiss(surplus)

    def _dismiss(self, file: int) -> None:
        with contextlib.suppress(OSError), _borrowed(file) as connection:
            if os.fstat(file).st_ino == self._seen[file][0] and not _has_key(connection):
                connection.shutdown(socket.SHUT_RDWR)  # ZeroMQ closes it
        self._forget(file)

    def _forget(self, file: int) -> None:
        self._newcomers.remove(file)
        self._seen.pop(file, None)


@contextlib.contextmanager
def _borrowed(file: int) -> Iterator[socket.socket]:
    """Provide a file descriptor of ZeroMQ as a socket. ZeroMQ may close it at any time.

    Raises:
        OSError: the descriptor is no longer a socket.
    """
    connection = socket.socket(fileno=file)
    try:
        yield connection
    finally:
        connection.detach()


def _has_key(connection: socket.socket) -> bool:
    """Return True if the client has proved that it knows the public key of the server."""
    about = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return bool(_ACKNOWLEDGED.unpack_from(about, _ACKNOWLEDGED_AT)[0] > _GREETING_BYTES)

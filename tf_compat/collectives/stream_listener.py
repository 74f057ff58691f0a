"""Accepts the streams of other members, and keeps them until this process joins their ring."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from enum import IntEnum

from tf_compat.collectives.streams import Door, Stream, connect
from torch_edl.wire.security.newcomers import Newcomers

log = logging.getLogger(__name__)

_GREETING = struct.Struct("<QIB")  # ring, rank of the sender, purpose
_HANDSHAKE_S = 5.0
_PAUSE_S = 0.1
_MOST_WAITING = 4096  # streams that no ring has taken yet


class Purpose(IntEnum):
    """Purpose of a stream."""

    MEET = 1  # rank 0 sends the addresses of all members
    NEXT = 2  # the member of the previous rank sends its part of each collective
    DIRECT = 3  # one member sends a state to another


_Key = tuple[int, int, Purpose]


class StreamListener:
    """A :class:`~torch_edl.engine.ring.replicated.MeetingPlace` for all rings of this process.

    A stream of an earlier ring is closed. A stream of a later ring is kept, because its sender may
    know of the ring before this process does.

    Args:
        host: address of this machine for the other members.
        token: token of the job.

    Raises:
        UsageError: the token is too weak, or the address cannot be bound.
    """

    def __init__(self, host: str, token: str) -> None:
        self._token = token
        self._door = Door(host, token)
        self.address = self._door.address
        self._changed = threading.Condition()
        self._waiting: dict[_Key, Stream] = {}
        self._ring = 0  # streams of earlier rings are closed
        self._closed = False
        self._handshakes: Newcomers[socket.socket] = Newcomers()
        threading.Thread(target=self._accept, name="ring-door", daemon=True).start()

    def enter(self, ring: int) -> None:
        """Close all streams of rings before ``ring``, and reject new ones."""
        with self._changed:
            self._ring = max(self._ring, ring)
            for key in [key for key in self._waiting if key[0] < self._ring]:
                self._waiting.pop(key).close()

    def connect(
        self, address: str, ring: int, rank: int, purpose: Purpose, timeout_s: float
    ) -> Stream:
        """Connect to the member at an address, as the member of ``rank``.

        Raises:
            OSError: the member does not listen there.
            UsageError: the folder of certificates cannot be used.
        """
        return connect(address, _GREETING.pack(ring, rank, purpose), self._token, timeout_s)

    def take(
        self,
        ring: int,
        rank: int,
        purpose: Purpose,
        *,
        deadline: float | None,
        gone: threading.Event,
    ) -> Stream:
        """Wait for the stream of the member of that rank and return it.

        Args:
            deadline: time of ``time.monotonic`` in seconds; None for no deadline.
            gone: event that ends the wait; set it before :meth:`wake`.

        Raises:
            TimeoutError: the member did not connect before the deadline.
            ConnectionAbortedError: ``gone`` was set.
        """
        key = (ring, rank, purpose)
        with self._changed:
            while key not in self._waiting:
                if gone.is_set():
                    raise ConnectionAbortedError("the ring is closed")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"rank {rank} did not connect")
                self._changed.wait(left)
            return self._waiting.pop(key)

    def wake(self) -> None:
        """Wake all waiting threads, so that they check their ``gone`` event."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop listening and close all streams that no ring has taken."""
        self._closed = True
        self._door.close()
        with self._changed:
            for stream in self._waiting.values():
                stream.close()
            self._waiting.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._door.accept()
            except OSError as error:
                if self._closed:
                    return
                log.warning("ring: a connection was not accepted: %s", error)
                time.sleep(_PAUSE_S)  # too many files are open
                continue
            hold = connection.dup()  # TLS takes the connection over; its handshake may not end
            with self._changed:
                surplus = self._handshakes.add(hold, address)
                if surplus is not None:
                    with contextlib.suppress(OSError):
                        surplus.shutdown(socket.SHUT_RDWR)
            threading.Thread(
                target=self._welcome, args=(connection, hold), name="ring-handshake", daemon=True
            ).start()

    def _welcome(self, connection: socket.socket, hold: socket.socket) -> None:
        try:
            found = self._door.welcome(connection, _HANDSHAKE_S)
        finally:
            with self._changed:
                self._handshakes.remove(hold)
                hold.close()
        if found is not None:
            self._keep(*found)

    def _keep(self, stream: Stream, greeting: bytes) -> None:
        try:
            ring, rank, purpose = _GREETING.unpack(greeting)
            key = (ring, rank, Purpose(purpose))
        except (struct.error, ValueError):
            stream.close()
            return
        with self._changed:
            if ring < self._ring or self._closed or len(self._waiting) >= _MOST_WAITING:
                stream.close()
                return
            before, self._waiting[key] = self._waiting.get(key), stream
            if before is not None:
                before.close()
            self._changed.notify_all()

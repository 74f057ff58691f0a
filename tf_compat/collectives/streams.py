"""Authenticated byte streams between two processes of a job.

Within a machine, a stream is a Unix socket, and the kernel reports the user of the other side.
Between machines it is TCP with mutual TLS, as for gRPC. The client first sends a key, derived from
the token of the job, and the purpose of the connection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import ssl
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torch_edl.errors import UsageError
from torch_edl.wire import keepalive
from torch_edl.wire.endpoint import bare, is_remote, split
from torch_edl.wire.security.credentials import identity
from torch_edl.wire.security.keys import derived, require_strong

if TYPE_CHECKING:
    from torch_edl.wire.security.certificates import Identity

_LOCAL = "unix-abstract:"
_PEER = struct.Struct("3i")  # pid, uid, gid
_GREETING = struct.Struct("<32sH")  # key, bytes that follow
MAX_GREETING_BYTES = 1 << 12
_BUFFER_BYTES = 4 << 20

_open: weakref.WeakSet[Stream | Door] = weakref.WeakSet()


def _after_fork() -> None:
    # An open socket in a child would hide the death of the parent from the other side.
    for each in list(_open):
        each.forget()


os.register_at_fork(after_in_child=_after_fork)


class Stream:
    """A connection.

    All methods except :meth:`interrupt` raise OSError if the connection fails. One thread may send
    while another receives, except with TLS.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._closed = False
        _open.add(self)

    def send(self, content: Any) -> None:
        """Send all bytes of a buffer without a copy."""
        self._socket.sendall(content)

    def receive(self, into: npt.NDArray[np.uint8]) -> None:
        """Fill a contiguous array with the next bytes."""
        left = memoryview(into)  # type: ignore[arg-type]
        while left:
            count = self._socket.recv_into(left)
            if not count:
                raise ConnectionResetError("the other side closed the connection")
            left = left[count:]

    def set_timeout(self, timeout_s: float | None) -> None:
        """Set the timeout of each blocking operation in seconds; None for no timeout."""
        self._socket.settimeout(timeout_s)

    def interrupt(self) -> None:
        """End all current and future operations on both sides. May be called from any thread."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    # SSLSocket.shutdown drops the keys; another thread would then send plain text.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self.interrupt()
        with self._lock:
            self._closed = True
            self._socket.close()
        _open.discard(self)

    def forget(self) -> None:
        """Close the socket in a forked child, without ending the parent's connection."""
        self._socket.close()


class Door:
    """Listens for streams.

    Args:
        host: address of this machine for the other processes. The loopback address without the
            prefix ``remote://`` accepts processes of this machine only.
        token: token of the job.

    Raises:
        UsageError: the token is too weak, or the address cannot be bound.
    """

    def __init__(self, host: str, token: str) -> None:
        self._key = derived(token, b"edl-stream")
        self._token = token
        try:
            if not is_remote(f"{host}:0"):
                name = f"torch-edl-{secrets.token_hex(16)}"
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.bind(f"\0{name}")
                self.address = _LOCAL + name
            else:
                named = bare(host).strip("[]")
                family = socket.AF_INET6 if ":" in named else socket.AF_INET
                self._socket = socket.create_server((named, 0), family=family)
                port = self._socket.getsockname()[1]
                self.address = f"[{named}]:{port}" if ":" in named else f"{named}:{port}"
                require_strong(token, self.address)
                identity(token)
        except OSError as error:
            raise UsageError(f"{host}: cannot listen there: {error.strerror}") from error
        self._socket.listen(128)
        _open.add(self)

    def accept(self) -> tuple[socket.socket, str]:
        """Accept the next connection, which :meth:`welcome` must then authenticate.

        Returns:
            The connection, and its origin: an address, or the id of a user of this machine.

        Raises:
            OSError: the door was closed.
        """
        connection, address = self._socket.accept()
        return connection, str(address[0] if address else _user(connection))

    def welcome(self, connection: socket.socket, timeout_s: float) -> tuple[Stream, bytes] | None:
        """Authenticate a connection; return the stream and its purpose.

        If the other side is no process of the job, the connection is closed and the result is None.

        Args:
            timeout_s: timeout of each step of the handshake in seconds.
        """
        stream = Stream(connection)
        try:
            connection.settimeout(timeout_s)
            if self.address.startswith(_LOCAL):
                _require_own(connection)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keepalive.watch(connection)
                # Created for each connection, since the certificates in a folder may be renewed.
                tls = _context(ssl.PROTOCOL_TLS_SERVER, identity(self._token))
                stream._socket = tls.wrap_socket(connection, server_side=True)
            key, size = _GREETING.unpack(_read(stream, _GREETING.size))
            if hmac.compare_digest(key, self._key) and size <= MAX_GREETING_BYTES:
                greeting = _read(stream, size)
                stream.set_timeout(None)
                return stream, greeting
        except (OSError, UsageError):
            pass
        stream.close()
        return None

    def close(self) -> None:
        """Stop listening; :meth:`accept` raises OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.forget()
        _open.discard(self)

    def forget(self) -> None:
        """Close the socket in a forked child, while the parent continues to listen."""
        self._socket.close()


def connect(address: str, greeting: bytes, token: str, timeout_s: float) -> Stream:
    """Connect to a :class:`Door`.

    Args:
        greeting: purpose of the connection.

    Raises:
        OSError: no process listens at the address, or the process is not of this job.
        UsageError: the folder of certificates cannot be used.
    """
    assert len(greeting) <= MAX_GREETING_BYTES
    if address.startswith(_LOCAL):
        connection = socket.socket(socket.AF_UNIX)
        stream = Stream(connection)
    else:
        connection = socket.create_connection(split(address), timeout=timeout_s)
        stream = Stream(connection)
    try:
        if address.startswith(_LOCAL):
            # With settimeout(), the kernel would not wait for room in a full queue.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
            connection.connect(f"\0{address.removeprefix(_LOCAL)}")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(0))
            connection.settimeout(timeout_s)
            _require_own(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keepalive.watch(connection)
            own = identity(token)
            tls = _context(ssl.PROTOCOL_TLS_CLIENT, own)
            stream._socket = tls.wrap_socket(connection, server_hostname=own.host)
        stream.send(_GREETING.pack(derived(token, b"edl-stream"), len(greeting)) + greeting)
        stream.set_timeout(None)
    except BaseException:
        stream.close()
        raise
    return stream


def _timeval(seconds: float) -> bytes:
    """Encode a timeout as a struct timeval; 0 for no timeout."""
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def _read(stream: Stream, size: int) -> bytes:
    into = np.empty(size, np.uint8)
    stream.receive(into)
    return into.tobytes()


def _user(connection: socket.socket) -> int:
    """Return the user id of the other side, as reported by the kernel."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(raw)[1])


def _require_own(connection: socket.socket) -> None:
    """Raise PermissionError unless the other side belongs to this user."""
    user = _user(connection)
    if user != os.getuid():
        raise PermissionError(1, f"a process of user {user}, not of {os.getuid()}")


def _context(kind: int, own: Identity) -> ssl.SSLContext:
    made = ssl.SSLContext(kind)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=own.ca.decode())
    # load_cert_chain needs a file name, so the keys are written to a file in memory.
    file = os.memfd_create("identity")
    with os.fdopen(file, "wb") as pem:
        pem.write(own.certificate + own.key)
        pem.flush()
        made.load_cert_chain(f"/proc/self/fd/{file}")
    if kind == ssl.PROTOCOL_TLS_SERVER:
        # A side that only sends never reads a ticket, and closing with unread bytes is a reset.
        made.num_tickets = 0
    return made

"""A way to a server on which connections break: a proxy of TCP on loopback."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from typing import Self


class BrokenLink:
    """Listens on a port and passes bytes on, until a connection has had its share of the answers.

    Attributes:
        port: of this side.
        share: bytes from the server to the client after which a connection is reset; None: no end.
        breaks: connections that were reset.

    Args:
        every: one of this number of connections transfers a part only; the others have no end.
    """

    def __init__(self, server_port: int, share: int | None = None, every: int = 1) -> None:
        self.share = share
        self.breaks = 0
        self._every = every
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _reset(each)
        for thread in self._threads:
            thread.join()

    def _start(self, target: object, *words: object) -> None:
        thread = threading.Thread(target=target, args=words, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            for number in itertools.count(1):
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += [client, server]
                share = None if number % self._every else self.share
                self._start(self._pass_on, client, server, None)
                self._start(self._pass_on, server, client, share)

    def _pass_on(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                target.sendall(part if left is None else part[:left])
                if left is not None:
                    left -= len(part)
                    if left < 0:
                        self.breaks += 1
                        break
        _reset(source)
        _reset(target)


def _reset(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()

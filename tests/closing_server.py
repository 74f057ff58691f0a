"""A server that closes every connection at once."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class ClosingServer:
    """Listens at a free port of the loopback address until the end of a ``with``.

    Attributes:
        address: where it listens, ``host:port``.
        connections: that it has closed.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()
                self.connections += 1

"""Forwards a port of this machine to a port of a pod, through the API server.

A client outside the cluster reaches the pods only in this way, and needs only the right to forward
ports. The traffic is encrypted from end to end.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16


class Forward:
    """Listens on the loopback address, and forwards each connection to the port of the pod."""

    def __init__(self, api: Api, pod: str, port: int) -> None:
        self.pod = pod
        self.error: ClusterError | None = None
        """The error of the last connection; None if it was established."""
        self._api, self._port = api, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, bound = self._listener.getsockname()
        self.address = f"{host}:{bound}"
        """The address ``HOST:PORT`` on this machine."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._start(self._accept)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            ends = [self._listener, *self._open]
        for end in ends:
            _shut(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # raised when the listener is closed
            while True:
                here, _ = self._listener.accept()
                if self._keep(here):
                    self._start(self._join, here)
        self._listener.close()

    def _join(self, here: socket.socket) -> None:
        """Forward one connection until either side closes it."""
        there: socket.socket | None = None
        try:
            there = self._api.connect(self.pod, self._port)
            self.error = None
            if self._keep(there):
                back = self._start(_copy, there, here)
                _copy(here, there)
                back.join()
        except ClusterError as error:
            log.debug("%s", error)
            self.error = error
        finally:
            self._drop(here)
            if there is not None:
                self._drop(there)

    def _keep(self, end: socket.socket) -> bool:
        """Register a socket for :meth:`close`; return False if that was called already."""
        with self._lock:
            if not self._closed:
                self._open.add(end)
                return True
        end.close()
        return False

    def _drop(self, end: socket.socket) -> None:
        with self._lock:
            self._open.discard(end)
        end.close()

    @staticmethod
    def _start(run: object, *args: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=args, name="forward", daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            to.sendall(data)
    # gRPC needs both directions, so the end of one closes both.
    _shut(source)
    _shut(to)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)

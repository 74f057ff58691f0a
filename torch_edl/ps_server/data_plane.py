"""Where the data plane of a server listens."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from torch_edl.errors import UsageError
from torch_edl.scratch import Scratch
from torch_edl.wire.data_plane import LOCAL
from torch_edl.wire.data_server import Answer, DataServer

_SOCKET_PATH = 100  # of 107 bytes that the kernel takes


class DataPlane:
    """Answers pulls and pushes until :meth:`close`: of this machine over a Unix socket, of others
    over TCP, encrypted.

    Args:
        answers: see :class:`~torch_edl.wire.data_server.DataServer`.
        host: where the server listens.
        name: of the server, for a folder.
        token: of the job.
        threads: calls at once.

    Raises:
        UsageError: the host is not of this machine.
    """

    def __init__(
        self, answers: Mapping[str, Answer], *, host: str, name: str, token: str, threads: int
    ) -> None:
        self._scratch: Scratch | None = None
        address = _address(host)
        where = f"tcp://{f'[{address}]' if ':' in address else address}:*"
        if ipaddress.ip_address(address).is_loopback:
            self._scratch = Scratch(name)
            path = str(self._scratch.path / "data")
            if len(path.encode()) <= _SOCKET_PATH:
                where = LOCAL + path
        self._server = DataServer(answers, endpoint=where, token=token, threads=threads)
        self.endpoint = self._server.endpoint
        """As workers are to connect."""
        if not self.endpoint.startswith(LOCAL):
            port = self.endpoint.rpartition(":")[2]
            self.endpoint = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self, grace_s: float) -> None:
        """Ends: calls that run are answered if they end within the grace."""
        self._server.close(grace_s)
        if self._scratch is not None:
            self._scratch.close()


def _address(host: str) -> str:
    """The numeric address of a host."""
    try:
        return str(socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"{host}: no address of this machine: {error}") from error

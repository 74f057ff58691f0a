"""The data plane of a server: its endpoint for pulls and pushes."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from torch_edl.errors import UsageError
from torch_edl.ps_server.scratch import Scratch
from torch_edl.wire.data_plane.server import Answer, DataServer
from torch_edl.wire.data_plane.sockets import LOCAL

_SOCKET_PATH = 100  # the kernel accepts 107 bytes


class DataPlane:
    """Answers pulls and pushes until :meth:`close`: over a Unix socket on a loopback host, else
    over encrypted TCP.

    Args:
        answers: see :class:`~torch_edl.wire.data_plane.server.DataServer`.
        host: host at which the server listens.
        name: name of the server, for its scratch folder.
        token: token of the job.
        threads: number of calls that are answered in parallel.

    Raises:
        UsageError: the host is not an address of this machine.
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
        """Endpoint to which workers connect."""
        if not self.endpoint.startswith(LOCAL):
            port = self.endpoint.rpartition(":")[2]
            self.endpoint = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self, grace_s: float) -> None:
        """Stop serving; running calls are answered if they end within ``grace_s`` seconds."""
        self._server.close(grace_s)
        if self._scratch is not None:
            self._scratch.close()


def _address(host: str) -> str:
    """Return the numeric address of a host."""
    try:
        return str(socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"{host}: no address of this machine: {error}") from error

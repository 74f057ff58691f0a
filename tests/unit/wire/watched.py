"""Servers in processes of their own, whose memory and files a test watches."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator

import psutil

from tests.waiting import HANG_S


class Server:
    """The process of a program that writes its endpoint, or its port on loopback."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.endpoint = process.stdout.readline().strip()
        self.port = int(self.endpoint.rpartition(":")[2])
        self.address = f"127.0.0.1:{self.port}"
        self._process = psutil.Process(process.pid)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), HANG_S)

    @property
    def mib(self) -> float:
        return float(self._process.memory_info().rss) / (1 << 20)

    @property
    def peak_mib(self) -> float:
        with open(f"/proc/{self._process.pid}/status", encoding="utf-8") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    @property
    def files(self) -> int:
        return self._process.num_fds()


@contextlib.contextmanager
def running(program: str, *words: str) -> Iterator[Server]:
    """Run a program until its standard input is closed at the end; it must end well."""
    command = [sys.executable, "-c", program, *words]
    env = {**os.environ, "GRPC_VERBOSITY": "ERROR"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(HANG_S) == 0


def ends(connection: socket.socket) -> bool:
    """Whether the other side closes the connection before the timeout."""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError, ssl.SSLError):
        while connection.recv(4096):
            pass
    return True

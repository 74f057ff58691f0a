"""Checks of the network of this machine: free ports, loopback, and the name of the machine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from torch_edl.plugins.doctor.finding import MB, Finding, ok, problem, warning

_LOOPBACK = "127.0.0.1"
# Number of ports on which a job of a dozen processes listens.
_PORTS = 32
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_FEW_PORTS = 1000
_SENT, _PIECE = 128 << 20, 1 << 20
_ROUNDS = 200
_PATIENCE_S = 10.0
_SLOW = 300 * MB


def ports() -> Iterator[Finding]:
    """Listen on free ports of loopback, and count those that remain for connections."""
    with contextlib.ExitStack() as stack:
        try:
            for _ in range(_PORTS):
                stack.enter_context(socket.create_server((_LOOPBACK, 0)))
        except OSError as error:
            fix = f"allow this user to listen on {_LOOPBACK}; see ip address show lo, and ulimit -n"
            yield problem("free ports", f"{_LOOPBACK}: {error.strerror}", fix)
            return
        low, high = map(int, _RANGE.read_text().split())
        used = len({port for port in _used_ports() if low <= port <= high})
    free = high - low + 1 - used
    text = f"{free:,} free between {low} and {high}"
    values = {"low": low, "high": high, "free": free}
    if free < _FEW_PORTS:
        fix = "sysctl net.ipv4.ip_local_port_range='32768 60999', or end other programs"
        yield warning("free ports", text, fix, **values)
    else:
        yield ok("free ports", text, **values)


def _used_ports() -> Iterator[int]:
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                yield int(line.split()[1].rpartition(":")[2], 16)


def loopback() -> Iterator[Finding]:
    """Measure the bandwidth and the round trip of a connection on loopback."""
    try:
        speed, trip_s = _measured()
    except OSError as error:
        fix = f"connections on {_LOOPBACK} must work: see ip address show lo, and the firewall"
        yield problem("loopback", f"{error.strerror or error}", fix)
        return
    values = {"bytes_per_s": round(speed), "round_trip_s": trip_s}
    text = f"{speed / MB:,.0f} MB/s, a round trip takes {trip_s * 1e6:.0f} us"
    if speed < _SLOW:
        fix = (
            "parameter servers on this machine will be slow: end other programs, or train small "
            "models without servers (--strategy local or allreduce)"
        )
        yield warning("loopback", text, fix, **values)
    else:
        yield ok("loopback", text, **values)


def _measured() -> tuple[float, float]:
    """Return bytes per second, and seconds of a round trip of one byte."""
    with socket.create_server((_LOOPBACK, 0)) as server:
        server.settimeout(_PATIENCE_S)
        echo = threading.Thread(target=_echo, args=(server,), name="doctor")
        echo.start()
        try:
            with socket.create_connection(server.getsockname(), timeout=_PATIENCE_S) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                piece = bytes(_PIECE)
                began = time.perf_counter()
                for _ in range(_SENT // _PIECE):
                    client.sendall(piece)
                _receive(client)
                sent_s = time.perf_counter() - began
                trips = []
                for _ in range(_ROUNDS):
                    began = time.perf_counter()
                    client.sendall(b"1")
                    _receive(client)
                    trips.append(time.perf_counter() - began)
        finally:
            server.close()
            echo.join()
    return _SENT / sent_s, sorted(trips)[_ROUNDS // 2]


def _receive(client: socket.socket) -> None:
    if not client.recv(1):
        raise ConnectionResetError("the connection was closed")


def _echo(server: socket.socket) -> None:
    """Receive all bytes of a connection, answer one byte, and then return each byte."""
    with contextlib.suppress(OSError):
        client, _ = server.accept()
        with client:
            client.settimeout(_PATIENCE_S)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            room, rest = bytearray(_PIECE), _SENT
            while rest and (count := client.recv_into(room, min(rest, _PIECE))):
                rest -= count
            client.sendall(b"1")
            while byte := client.recv(1):
                client.sendall(byte)


def name() -> Iterator[Finding]:
    """Check that the name of the machine has an address that other machines can reach."""
    host = socket.gethostname()
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, 0)}
    except OSError as error:
        text = f"{host}: {error.strerror}"
        fix = f"add {host} to /etc/hosts; only jobs on several machines (--nnodes) need it"
        yield warning("machine name", text, fix, name=host, addresses=[])
        return
    yield ok("machine name", f"{host}: {', '.join(sorted(found))}", name=host,
             addresses=sorted(found))  # fmt: skip

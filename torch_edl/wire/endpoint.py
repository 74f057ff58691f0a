"""Parse endpoints ``host:port``, and find out if they are local or may be remote.

The only network traffic of this module is a connection to test if a process listens.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket

from torch_edl.errors import UsageError

LOOPBACK = "127.0.0.1"
REMOTE = "remote://"
"""Prefix of a loopback endpoint that is a tunnel to another machine."""
ANY = ("0.0.0.0", "::", "*")
"""Hosts that mean all interfaces of a machine when bound; they are no address to connect to."""
_CONNECT_TIMEOUT_S = 1.0
# Below the ports that Linux assigns to sockets (from 32768), and below Kubernetes' node ports.
_FREE_PORTS = range(20000, 30000)
_random = random.SystemRandom()  # a seeded generator is equal in forked processes


def split(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint; brackets around an IPv6 address are removed.

    Raises:
        UsageError: the text is not ``HOST:PORT``.
    """
    name, colon, port = bare(endpoint).rpartition(":")
    if not (colon and name and port.isdecimal()):
        raise UsageError(f"{endpoint}: not an endpoint; write HOST:PORT, such as node0:29400")
    return name.strip("[]"), int(port)


def bare(endpoint: str) -> str:
    """Return ``host:port`` without the prefix ``remote://``."""
    return endpoint.removeprefix(REMOTE)


def is_remote(endpoint: str) -> bool:
    """Return True if the endpoint may be on another machine or reachable from there.

    Only literal loopback addresses and ``localhost`` are not remote. Names are not resolved,
    because DNS answers can be forged.
    """
    if endpoint.startswith(REMOTE):
        return True
    host = endpoint.rpartition(":")[0].strip("[]")
    return host != "localhost" and not _is_loopback(host)


def is_any(endpoint: str) -> bool:
    """Return True if the endpoint means all interfaces of a machine."""
    return bare(endpoint).rpartition(":")[0].strip("[]") in ANY


def is_local(endpoint: str) -> bool:
    """Return True if the host of an endpoint is an address of this machine."""
    name, _ = split(endpoint)
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        # Only an address of this machine can be bound.
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def is_loopback_name(endpoint: str) -> bool:
    """Return True if the host is a name of this machine that resolves to loopback only, as in the
    ``/etc/hosts`` of Debian."""
    host, _ = split(endpoint)
    found = _addresses(host)
    return host not in found and bool(found) and all(map(_is_loopback, found))


def own_address(endpoint: str) -> str:
    """Return this machine's address on the route to ``endpoint``, for other machines."""
    host, port = split(endpoint)
    if is_local(endpoint):
        return host
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return socket.getfqdn()


def is_same(one: str, other: str) -> bool:
    """Return True if two endpoints have the same port and a common host address."""
    (host, port), (other_host, other_port) = split(one), split(other)
    return port == other_port and bool(_addresses(host) & _addresses(other_host))


def free_port() -> int:
    """Return a free port of this machine; if possible, one outside the range from which the kernel
    assigns ports, so that no other socket gets the port before the caller binds it."""
    for port in _random.sample(_FREE_PORTS, 20):
        with contextlib.suppress(OSError):
            return _bound(port)
    return _bound(0)


def is_listening(endpoint: str) -> bool:
    """Return True if a process accepts connections at the endpoint."""
    try:
        with socket.create_connection(split(endpoint), timeout=_CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _bound(port: int) -> int:
    """Bind a port, 0 for any, and return its number; raise OSError if the port is in use."""
    with socket.socket() as probe:
        probe.bind(("", port))
        return int(probe.getsockname()[1])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _addresses(host: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, 0)}
    return set()

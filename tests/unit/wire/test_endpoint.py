"""Which endpoints are of this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from torch_edl.wire import endpoint
from torch_edl.wire.endpoint import free_port, is_loopback_name, is_remote


@pytest.mark.parametrize(
    ("where", "remote"),
    [
        ("127.0.0.1:1", False),
        ("127.9.9.9:1", False),
        ("[::1]:1", False),
        ("localhost:1", False),
        ("remote://127.0.0.1:1", True),
        ("0.0.0.0:1", True),
        ("[::]:1", True),
        (":1", True),
        ("*:1", True),
        ("10.0.0.1:1", True),
        ("[fd00::1]:1", True),
        # Whatever a name server says of them.
        ("node0:1", True),
        ("localhost.example.com:1", True),
        ("127.0.0.1.example.com:1", True),
    ],
)
def test_all_but_literal_loopback_may_be_another_machine(where: str, remote: bool) -> None:
    assert is_remote(where) == remote


@pytest.mark.parametrize(
    ("where", "addresses", "expected"),
    [
        ("node0:1", ["127.0.1.1"], True),  # Debian's
        ("node0:1", ["127.0.0.1", "::1"], True),
        ("node0:1", ["127.0.1.1", "10.0.0.1"], False),
        ("node0:1", ["10.0.0.1"], False),
        ("node0:1", [], False),
        ("127.0.0.1:1", ["127.0.0.1"], False),  # meant so
        ("[::1]:1", ["::1"], False),
        ("10.0.0.1:1", ["10.0.0.1"], False),
    ],
)
def test_a_name_that_only_this_machine_understands(
    monkeypatch: pytest.MonkeyPatch, where: str, addresses: list[str], expected: bool
) -> None:
    def found(*_: Any, **__: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert is_loopback_name(where) == expected


def test_the_kernel_gives_a_free_port_to_no_other_socket() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [free_port() for _ in range(100)]
    assert not any(first <= port <= last for port in ports)
    assert len(set(ports)) > 90


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(endpoint._random, "sample", lambda *_: [port])
    assert endpoint.free_port() == port
    with socket.create_server(("127.0.0.1", port)):
        assert endpoint.free_port() not in (0, port)

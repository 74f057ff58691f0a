"""Names of machines, as the files and servers of names have them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from torch_edl.wire.endpoint import is_loopback_name


@pytest.mark.parametrize(
    ("endpoint", "addresses", "expected"),
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
    monkeypatch: pytest.MonkeyPatch, endpoint: str, addresses: list[str], expected: bool
) -> None:
    def found(*_: Any, **__: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert is_loopback_name(endpoint) == expected

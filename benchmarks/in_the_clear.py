"""Calls without TLS, which nothing but ``encryption.py`` makes."""

from __future__ import annotations

import grpc

from torch_edl.wire.security import credentials

_ENCRYPTED = credentials.listen, credentials.channel


def use(kind: str) -> None:
    """Have servers and stubs that are made from now on use ``tls``, or be ``plain``."""
    credentials.listen, credentials.channel = _ENCRYPTED
    if kind == "plain":
        credentials.listen = lambda server, address, token: server.add_insecure_port(address)
        credentials.channel = lambda address, token, options: grpc.insecure_channel(
            address, options=options
        )

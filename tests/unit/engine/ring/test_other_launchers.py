"""Processes that neither torchrun nor torch-edl run started: said at once, and what to do."""

from __future__ import annotations

import socket

import pytest

from torch_edl.engine.ring.rendezvous import TorchrunRendezvous
from torch_edl.errors import JobFailedError, UsageError


def test_a_launcher_that_serves_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match=r"\['MASTER_ADDR'\] not: .* by torchrun or torch-edl run"):
        TorchrunRendezvous()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    rendezvous = TorchrunRendezvous()
    with pytest.raises(JobFailedError, match=f"nobody answers at .*=127.0.0.1:{port} .*refused"):
        rendezvous.next(0, -1)

"""Opens a journal as one server after the other does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_edl.ps_server.durability.disk import Disk
from torch_edl.ps_server.durability.identity import JournalIdentity, find
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.records import Kind, LogEntry

MINE = JournalIdentity(job="job", shard=0, shards=2, model=1)
PAYLOADS = [b"first", b"", b"\0" * 40, bytes(range(60)), b"last"]


def on_disk(root: Path, identity: JournalIdentity, incarnation: int, **more: Any) -> ChangeLog:
    return ChangeLog(Disk(root, identity, incarnation, **more))


class Server:
    """Opens the journal under a folder, each time as a later server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: list[ChangeLog] = []

    def open(self, **more: Any) -> ChangeLog:
        owner = find(self.root) if self.root.exists() else None
        incarnation = owner[0] + 1 if owner else 1
        self._opened.append(on_disk(self.root, MINE, incarnation, **{"fsync": "never", **more}))
        return self._opened[-1]

    def recovered(self) -> list[bytes]:
        return [record.payload for record in self.open().records()]

    def segment(self) -> Path:
        (path,) = self.root.glob("*/*.log")
        return path

    def close(self) -> None:
        for each in self._opened:
            each.close()


def write(journal: ChangeLog, payloads: list[bytes]) -> None:
    for _ in journal.records():
        pass
    for payload in payloads:
        journal.append(LogEntry.of(Kind.GRADIENTS, payload))
        journal.wait_durable()

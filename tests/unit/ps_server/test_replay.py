"""A journal that is replayed is the shard that wrote it: all kinds of changes, and each byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ps_server.journalled import (
    Local,
    Worker,
    begin,
    dump_of_changes,
    kill,
    reopen,
    reopened,
)
from torch_edl.ps_server.durability.records import Kind


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_cut_at_every_byte_of_the_last_records_is_the_state_before(
    start: Callable[..., Any], tmp_path: Path, mode: str
) -> None:
    """In the process of this test: the same shard, without the server around it."""
    root = tmp_path / "journal"
    server = begin(start, root, mode)
    worker, states, sizes = Worker(server), [], []

    def size() -> int:
        return sum(path.stat().st_size for path in root.glob("*/*.log"))

    for _ in range(7):
        worker.push()
        sizes.append(size())
    kill(server)
    (path,) = root.glob("*/*.log")
    content = path.read_bytes()
    incarnation = 10

    def state(length: int) -> dict[str, Any]:
        nonlocal incarnation
        incarnation += 1
        for old in root.glob("*/*.log"):
            old.unlink()
        folder = next(root.glob("incarnation-*"))
        (folder / path.name).write_bytes(content[:length])
        return reopened(root, mode, incarnation)

    states = [state(length) for length in sizes]
    assert all(states[i] != states[i + 1] for i in range(6))
    # Every byte of the heads, and of the middle of the payloads some: a replay takes milliseconds.
    for number in range(3, 7):
        begun, end = sizes[number - 1], sizes[number]
        for length in [*range(begun, begun + 60), *range(begun + 60, end, 97), end - 1]:
            assert state(length) == states[number - 1], (number, length)
        assert state(end) == states[number]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_everything_that_changes_a_shard_is_replayed(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "journal"
    local = Local(root, mode)
    for _ in range(200):
        local.do()
    few = local.shard.table("few").core
    assert 0 < few.size <= 30
    assert 0 < few.counted <= 30
    expected = dump_of_changes(local.shard)
    local.journal.append(local.nothing())
    local.journal.close()
    evicted = [r for r in reopen(root, mode)[1].records(after=0) if r.kind == Kind.EVICTION]
    assert len(evicted) > 10
    shard, journal = reopen(root, mode, 2000)
    journal.close()
    found = dump_of_changes(shard)
    for name, value in expected.items():
        assert found[name] == value, name

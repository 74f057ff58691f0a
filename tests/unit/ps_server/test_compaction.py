"""Snapshots of the journal: equal to the state, at each step of a crash, without a stall."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ps_server.conftest import described
from tests.unit.ps_server.durability.crashes import Crash, crash_after
from tests.unit.ps_server.durability.journals import on_disk
from tests.unit.ps_server.journalled import (
    ADAM,
    DENSE,
    IDENTITY,
    IDS,
    RULES,
    Local,
    Worker,
    begin,
    dump_of_changes,
    kill,
    reopen,
)
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.errors import JournalDamagedError
from torch_edl.ps_server import snapshots
from torch_edl.ps_server.recovery import recover
from torch_edl.ps_server.shard import ModelShard
from torch_edl.ps_server.snapshots import Compactor
from torch_edl.wire import pserver_pb2 as pb


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_snapshot_and_the_records_after_it_are_the_state(tmp_path: Path, mode: str) -> None:
    """Pushes go on while the files of the snapshot are written."""
    root = tmp_path / "journal"
    local = Local(root, mode)
    for incarnation in range(2, 6):
        for _ in range(40):
            local.do()
        # No cut: the lock of the compactor keeps checkpoints out.
        snapshots.write(local.shard, local.journal, after_file=local.push)
        for _ in range(7):
            local.do()
        expected = dump_of_changes(local.shard)
        local.journal.append(local.nothing())
        local.journal.close()
        local.shard, local.journal = reopen(root, mode, incarnation)
        found = dump_of_changes(local.shard)
        for name, value in expected.items():
            assert found[name] == value, name
    local.journal.close()


def test_a_crash_at_each_step_of_a_compaction(tmp_path: Path) -> None:
    root = tmp_path / "journal"
    local = Local(root, "async")
    crashes, incarnation, finished = 0, 1, False
    while not finished:
        for _ in range(5):
            local.do()
        expected = dump_of_changes(local.shard)
        local.journal.append(local.nothing())
        with crash_after(crashes):
            try:
                snapshots.write(local.shard, local.journal)
                finished = True
            except Crash:
                crashes += 1
        incarnation += 1
        local.shard, local.journal = reopen(root, "async", incarnation)
        found = dump_of_changes(local.shard)
        for name, value in expected.items():
            assert found[name] == value, (name, crashes)
    assert crashes > 15


def test_a_damaged_snapshot_is_named(tmp_path: Path) -> None:
    root = tmp_path / "journal"
    local = Local(root, "async")
    local.push()
    snapshots.write(local.shard, local.journal)
    local.push()
    local.journal.close()
    incarnation = 10
    names = sorted(path.name for path in root.glob("*/snapshot-*/*"))
    assert len(names) == 6
    for name in names:
        for change in ("flip", "cut", "remove"):
            (path,) = root.glob(f"*/snapshot-*/{name}")
            content = path.read_bytes()
            if change == "remove":
                path.unlink()
            else:
                flipped = content[:-1] + bytes([content[-1] ^ 1])
                path.write_bytes(flipped if change == "flip" else content[:-3])
            incarnation += 1
            with pytest.raises(JournalDamagedError, match="the snapshot is damaged"):
                reopen(root, "async", incarnation)
            (folder,) = root.glob("*/snapshot-*")
            (folder / name).write_bytes(content)
    reopen(root, "async", 1000)[1].close()


def test_the_log_is_compacted_while_pushes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LOG_BYTES", 10_000)
    monkeypatch.setattr(snapshots, "_LOOK_S", 0.001)
    root = tmp_path / "journal"
    local = Local(root, "async")
    compactor = Compactor(local.shard, local.journal, lambda: False)
    taken = set()
    while len(taken) < 5:
        local.push()
        taken.add(local.journal.base.sequence)
    compactor.close()
    expected = dump_of_changes(local.shard)
    local.journal.append(local.nothing())
    local.journal.close()
    shard, journal = reopen(root, "async")
    journal.close()
    assert dump_of_changes(shard) == expected


def test_a_restored_server_needs_its_checkpoint_only_until_its_first_snapshot(
    start: Callable[..., Any], tmp_path: Path, save: Callable[..., Path]
) -> None:
    first = begin(start, tmp_path / "first", "async")
    worker = Worker(first)
    for _ in range(10):
        worker.push()
    checkpoint = save([first])
    root = tmp_path / "journal"
    second = begin(start, root, "async", f"--restore={checkpoint}")
    worker.server = second
    worker.push()
    # A checkpoint of the second waits for the snapshot; then the first checkpoint may go.
    save([second], steps=2)
    shutil.rmtree(checkpoint)
    worker.push()
    dense, rows = second.dense().tobytes(), second.pull("t", IDS).tobytes()
    kill(second)
    arguments = [f"--journal={root}", "--incarnation=4", f"--restore={checkpoint}"]
    (third,) = start(1, *arguments)
    third.fence.incarnation = 4
    assert third.status().version == 12
    assert (third.dense().tobytes(), third.pull("t", IDS).tobytes()) == (dense, rows)


def test_there_is_no_snapshot_before_a_worker_asked_for_the_restored_tables(
    start: Callable[..., Any],
    tmp_path: Path,
    save: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A successor could not restore them: it no longer reads the checkpoint."""
    first = begin(start, tmp_path / "first", "async")
    worker = Worker(first)
    for _ in range(10):
        worker.push()
    rows = first.pull("t", IDS).tobytes()
    checkpoint = save([first])
    kill(first)
    monkeypatch.setattr(snapshots, "_LOOK_S", 0.001)
    root = tmp_path / "journal"
    journal = on_disk(root, IDENTITY, 2, fsync="never")
    shard = ModelShard(RULES["async"], CheckpointReader(checkpoint), pytest.fail, log=journal)
    recover(shard, journal)
    compactor = Compactor(shard, journal, lambda: False)
    shard.initialize(described(DENSE, **ADAM, seed=11))
    assert shard.needs_source
    assert not compactor._is_due()
    info = pb.EmbeddingTableInfo(name="t", dim=4, initializer=pb.Initializer(kind="zeros"))
    asked = pb.PushEmbeddingTableInfosRequest(infos=[info])
    shard.add_tables(asked)
    compactor.give_way(20)
    compactor.close()
    assert journal.base.sequence == 2
    journal.close()
    shutil.rmtree(checkpoint)
    successor, journal = reopen(root, "async")
    journal.close()
    assert successor.table("t").core.pull(IDS).tobytes() == rows

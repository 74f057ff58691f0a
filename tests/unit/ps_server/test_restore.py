"""What servers restore: checkpoints of any number of servers, and exported models."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.ps_server.conftest import refused
from torch_edl import _core
from torch_edl.checkpoint.export import write_output
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.errors import CheckpointError
from torch_edl.wire import pserver_pb2 as pb

INT64 = np.iinfo(np.int64)

IDS = np.concatenate([np.arange(-500, 500), [INT64.min, INT64.max]])

DENSE = {
    n: np.full(s, i, np.float32) for i, (n, s) in enumerate((("a", 3), ("b", (2, 5)), ("c", 9)))
}


def push_all(servers: list[Any], task: int, first: int, last: int, scale: float = -1) -> None:
    """One push of everything to all servers, as a worker would."""
    owners = _core.owner(IDS, len(servers))
    for server in servers:
        mine = IDS[owners == server.shard]
        values = np.full((len(mine), 4), scale, np.float32)
        flat = np.full(len(server.dense()), scale, np.float32)
        server.push(task, first, last, dense=flat, rows={"t": (mine, values)})


def read_all(servers: list[Any]) -> tuple[np.ndarray, float]:
    """The rows of IDS, and the sum of the dense parameters."""
    rows = np.empty((len(IDS), 4), np.float32)
    owners = _core.owner(IDS, len(servers))
    for server in servers:
        rows[owners == server.shard] = server.pull("t", IDS[owners == server.shard])
    return rows, float(sum(s.dense().sum() for s in servers))


@pytest.mark.parametrize("kind", ["adam", pytest.param("sgd", marks=pytest.mark.slow)])
def test_three_servers_become_two_become_five(
    start: Callable[..., Any], save: Callable[..., Path], kind: str
) -> None:
    """And train on as if nothing had happened: slots, steps, versions and marks are all there."""
    hyper = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5} if kind == "sgd" else {"lr": 0.1}
    arguments: dict[str, Any] = {
        "kind": kind,
        "hyper": hyper,
        "initializer": pb.Initializer(kind="normal", args={"std": 1.0}),
    }
    (plain,) = start(1)
    plain.initialize(DENSE, {"t": 4}, **arguments)
    servers = start(3)
    for step, shards in enumerate((3, 2, 5)):
        if step:
            directory = save(servers, steps=step)
            for server in servers:
                assert server.stop() == 128 + signal.SIGTERM
            servers = start(shards, f"--restore={directory}")
        for server in servers:
            # What a restored server is told to start from does not matter.
            other = {n: v + 100 * step for n, v in DENSE.items()}
            assert server.initialize(other, {"t": 4}, **arguments)
            request = pb.GetWatermarksRequest(fence=server.fence, task_ids=[0])
            assert list(server.call(request).offsets) == [10 * step]
            assert server.status().version == 2 * step
        for half in (0, 5):
            push_all(servers, 0, 10 * step + half, 10 * step + half + 5, scale=step + half + 1)
            push_all([plain], 0, 10 * step + half, 10 * step + half + 5, scale=step + half + 1)
        rows, dense = read_all(servers)
        expected_rows, expected_dense = read_all([plain])
        np.testing.assert_array_equal(rows, expected_rows)
        assert dense == pytest.approx(expected_dense, rel=1e-6)


def test_a_bounded_table_is_shared_over_servers_and_cut_where_it_is_restored(
    start: Callable[..., Any], save: Callable[..., Path]
) -> None:
    """Every server holds its share of the bound; the newest rows stay."""

    def push_rows(servers: list[Any], step: int) -> None:
        ids = np.arange(step * 100, step * 100 + 100)
        owners = _core.owner(ids, len(servers))
        for server in servers:
            mine = ids[owners == server.shard]
            server.push(step, 0, 1, rows={"t": (mine, np.full((len(mine), 4), -1, np.float32))})

    servers = start(3)
    for server in servers:
        server.initialize(DENSE, {"t": 4}, max_rows=1000)
    for step in range(40):
        push_rows(servers, step)
        assert all(s.status().rows["t"] <= 334 for s in servers)
    assert sum(s.status().rows["t"] for s in servers) >= 900
    directory = save(servers)
    for shards, bound in ((2, 1000), (2, 600), (4, 500)):
        restored = start(shards, f"--restore={directory}")
        for server in restored:
            server.initialize(DENSE, {"t": 4}, max_rows=bound)
        total = sum(s.status().rows["t"] for s in restored)
        assert bound * 0.85 <= total <= bound
        newest = np.arange(3800, 4000)
        owners = _core.owner(newest, shards)
        for server in restored:
            assert (server.pull("t", newest[owners == server.shard]) == 1).all()
        push_rows(restored, 40)  # eviction goes on
        assert sum(s.status().rows["t"] for s in restored) <= bound


def test_ids_that_are_counted_move_with_the_rows(
    start: Callable[..., Any], save: Callable[..., Path]
) -> None:
    """A row appears with the third push of its id, whichever servers counted the others."""
    ids = np.arange(-300, 300)

    def push_rows(servers: list[Any], step: int, some: np.ndarray) -> None:
        owners = _core.owner(some, len(servers))
        for server in servers:
            mine = some[owners == server.shard]
            server.push(step, 0, 1, rows={"t": (mine, np.full((len(mine), 4), -1, np.float32))})

    servers = start(3)
    for step, shards in enumerate((3, 2, 5)):
        if step:
            servers = start(shards, f"--restore={save(servers, steps=step)}")
        for server in servers:
            server.initialize(DENSE, {"t": 4}, min_count=3)
        push_rows(servers, step, ids if step else ids[::2].copy())
    owners = _core.owner(ids, len(servers))
    for server in servers:
        mine = ids[owners == server.shard]
        expected = np.where(mine % 2 == 0, 1, 0)[:, None]
        assert (server.pull("t", mine) == expected).all()
        assert server.status().rows["t"] == expected.sum()


def test_an_exported_model_is_restored_and_read_by_anyone(
    start: Callable[..., Any], save: Callable[..., Path], tmp_path: Path
) -> None:
    servers = start(2)
    normal = pb.Initializer(kind="normal", args={"std": 1.0})
    for server in servers:
        server.initialize(DENSE, {"t": 4, "empty": 2}, kind="adagrad", initializer=normal)
    push_all(servers, 0, 0, 64)
    rows, dense = read_all(servers)
    unseen = np.arange(10_000, 10_050)
    expected_unseen = _core.init_rows("t", 11, "normal", {"std": 1.0}, unseen, 4)
    output = tmp_path / "out"
    output.mkdir()
    (output / "old").write_text("of the run before")
    write_output(save(servers, steps=7), output)
    assert sorted(p.name for p in output.iterdir()) == [
        "embeddings",
        "metadata.json",
        "model.safetensors",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "out"]
    model = load_file(output / "model.safetensors")
    assert {n: v.shape for n, v in model.items()} == {n: v.shape for n, v in DENSE.items()}
    table = load_file(output / "embeddings" / "t.safetensors")
    order = np.argsort(IDS)
    assert (table["ids"] == IDS[order]).all()
    assert (table["vectors"] == rows[order]).all()
    assert load_file(output / "embeddings" / "empty.safetensors")["vectors"].shape == (0, 2)
    about = json.loads((output / "metadata.json").read_text())
    assert (about["format"], about["job"], about["steps"]) == (1, "job", 7)
    assert about["tables"]["t"] == {
        "dim": 4,
        "num_embeddings": 0,
        "initializer": {"kind": "normal", "args": {"std": 1.0}},
        "seed": 11,
        "storage_dtype": "fp32",
        "modules": ["t"],
    }

    restored = start(3, f"--restore={output}")
    for server in restored:
        zeros = {n: v * 0 for n, v in DENSE.items()}
        server.initialize(zeros, {"t": 4}, kind="adagrad")
    again, dense_again = read_all(restored)
    assert (again == rows).all()
    assert dense_again == pytest.approx(dense)
    # Rows that training never saw start as they would have there.
    owners = _core.owner(unseen, 3)
    for server in restored:
        mine = owners == server.shard
        assert (server.pull("t", unseen[mine]) == expected_unseen[mine]).all()


def test_damaged_checkpoints_are_refused(
    start: Callable[..., Any], save: Callable[..., Path], tmp_path: Path
) -> None:
    (server,) = start(1)
    server.initialize(DENSE, {"t": 4})
    push_all([server], 0, 0, 1)
    good = save([server])
    part = "shard-0-of-1.table-0.part-0.safetensors"
    flat = "shard-0-of-1.dense.safetensors"

    def restored(directory: Path) -> None:
        source = CheckpointReader(directory)
        source.dense()
        for _ in source.tables["t"].rows():
            pass

    def damaged(name: str, change: Callable[[Path], None], match: str) -> None:
        directory = tmp_path / "damaged"
        shutil.copytree(good, directory)
        change(directory / name)
        with pytest.raises(CheckpointError, match=match):
            restored(directory)
        shutil.rmtree(directory)

    def flip(at: int) -> Callable[[Path], None]:
        def change(path: Path) -> None:
            raw = bytearray(path.read_bytes())
            raw[at] ^= 1
            path.write_bytes(raw)

        return change

    restored(good)
    damaged(part, flip(-1), "checksum of slots|checksum of vectors")
    damaged(flat, flip(-1), "checksum")
    damaged(part, flip(2), "damaged")
    damaged(part, lambda p: p.write_bytes(p.read_bytes()[:-8]), "bytes, the manifest says")
    damaged(flat, lambda p: p.unlink(), "None bytes")
    damaged("manifest.json", lambda p: p.write_text("{"), "not a manifest")
    damaged("manifest.json", lambda p: p.unlink(), "neither a checkpoint")

    def another_format(path: Path) -> None:
        path.write_text(path.read_text().replace('"format": 2', '"format": 3'))

    damaged("manifest.json", another_format, "damaged: checkpoint format 3: .* reads format 2")

    def another_strategy(path: Path) -> None:
        path.write_text(path.read_text().replace('"ps"', '"local"'))

    damaged("manifest.json", another_strategy, "--strategy local")


def test_a_model_of_another_shape_is_refused(
    start: Callable[..., Any], save: Callable[..., Path]
) -> None:
    (server,) = start(1)
    server.initialize(DENSE, {"t": 4})
    directory = save([server])
    for change, match in (
        ({"dense": {"a": np.zeros(4, np.float32)}}, r"a: (3,) in the saved model"),
        ({"dense": {"z": np.zeros(4, np.float32)}}, "z: not in the saved model"),
        ({"tables": {"t": 8}}, "table t: dim 8, but 4"),
    ):
        (other,) = start(1, f"--restore={directory}")
        with refused(match):
            other.initialize(**{"dense": DENSE, "tables": {"t": 4}, **change})
        other.stop()

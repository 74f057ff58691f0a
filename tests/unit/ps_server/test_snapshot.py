"""Checkpoints: all shards of one moment, without a pause, into any number of servers."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import load_file, save_file

from torch_edl import _core
from torch_edl.checkpoint import files, layout
from torch_edl.checkpoint.export import write_output
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.writer import write_tables
from torch_edl.errors import CheckpointError
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable
from torch_edl.tables.watermarks import Watermarks
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


@pytest.mark.parametrize("kind", ["adam", "sgd"])
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
                assert server.stop() == 0
            servers = start(shards, f"--restore={directory}")
        for server in servers:
            # What a restored server is told to start from does not matter.
            other = {n: v + 100 * step for n, v in DENSE.items()}
            assert server.initialize(other, {"t": 4}, **arguments)
            request = pb.GetWatermarksRequest(fence=server.fence, task_ids=[0])
            assert list(server.call("GetWatermarks", request).offsets) == [10 * step]
            assert server.status().version == 2 * step
        for half in (0, 5):
            push_all(servers, 0, 10 * step + half, 10 * step + half + 5, scale=step + half + 1)
            push_all([plain], 0, 10 * step + half, 10 * step + half + 5, scale=step + half + 1)
        rows, dense = read_all(servers)
        expected_rows, expected_dense = read_all([plain])
        np.testing.assert_array_equal(rows, expected_rows)
        assert dense == pytest.approx(expected_dense, rel=1e-6)


def test_a_model_of_any_type_of_number_is_written(tmp_path: Path) -> None:
    """As workers of the strategies local and allreduce leave it for the master."""
    model = {
        "double": torch.linspace(0, 1, 5, dtype=torch.float64),
        "brain": torch.linspace(-3, 3, 7, dtype=torch.bfloat16).view(7, 1),
        "half": torch.linspace(0, 1, 3, dtype=torch.float16),
        "flags": torch.tensor([True, False, True]),
        "count": torch.tensor(3),
        "small": torch.arange(3, dtype=torch.int8),
        "float": torch.ones(2, 2),
    }
    folder = layout.step_dir(tmp_path, 1)
    folder.mkdir()
    name = "shard-0-of-1.dense.safetensors"
    safetensors.torch.save_file(model, folder / name)
    size = (folder / name).stat().st_size
    manifest = Manifest(job="j", strategy="allreduce", steps=1, shards=1, files={name: size})
    layout.commit(folder, manifest)
    write_output(folder, tmp_path / "out")
    written = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == model.keys()
    for key, value in model.items():
        # numpy has no bfloat16; float32 holds each of its values.
        wanted = value.float() if value.dtype == torch.bfloat16 else value
        torch.testing.assert_close(written[key], wanted, rtol=0, atol=0)


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


def test_a_snapshot_under_pushes_agrees_on_the_records(
    start: Callable[..., Any], save: Callable[..., Path]
) -> None:
    """SGD with rate 1 and gradient -n for n records counts records: every weight, every row and
    the watermarks must say the same number, on both servers, though workers push all the time."""
    servers = start(2)
    for server in servers:
        server.initialize({"w": np.zeros(64, np.float32), "v": np.zeros(64, np.float32)}, {"t": 4})
    owners = _core.owner(IDS, 2)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(task: int) -> None:
        first = 0
        try:
            while not stop.is_set():
                n = 1 + (first + task) % 7
                for server in servers:  # one after the other: the servers differ in between
                    mine = IDS[owners == server.shard]
                    rows = {"t": (mine, np.full((len(mine), 4), -n, np.float32))}
                    flat = np.full(64, -n, np.float32)
                    server.push(task, first, first + n, dense=flat, rows=rows)
                first += n
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(t,)) for t in range(3)]
    for worker in workers:
        worker.start()
    try:
        counts = []
        for step in range(1, 5):
            deadline = time.monotonic() + 20
            before = servers[0].status().pushes
            while servers[0].status().pushes < before + 10 and time.monotonic() < deadline:
                time.sleep(0.005)
            directory = save(servers, steps=step)
            manifest = layout.read(directory)
            records = sum(manifest.watermarks.offsets.values())
            source = CheckpointReader(directory)
            values, _ = source.dense()
            assert set(values) == {"v", "v@step", "w", "w@step"}
            for name in ("v", "w"):
                assert (values[name] == records).all()
            ids = []
            for _, rows in source.tables["t"].rows():
                assert (rows.vectors == records).all()
                assert (rows.count == rows.last_used).all()  # each update named each row
                ids.append(rows.ids)
            assert sorted(np.concatenate(ids).tolist()) == sorted(IDS.tolist())
            counts.append(records)
        assert counts == sorted(set(counts))  # training went on in between
    finally:
        stop.set()
        for worker in workers:
            worker.join(20)
    assert not failures


def test_a_snapshot_of_a_million_rows_keeps_pushes_waiting_for_milliseconds(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (server,) = start(1)
    server.initialize({}, {"t": 16}, kind="adagrad", hyper={"lr": 0.1})
    total, task = 1_000_000, 0
    for first in range(0, total, 100_000):
        server.pull("t", np.arange(first, first + 100_000), read_only=False)
    rng = np.random.default_rng(0)
    stop = threading.Event()
    waits: list[tuple[float, float]] = []

    def work() -> None:
        nonlocal task
        values = np.ones((1000, 16), np.float32)
        while not stop.is_set():
            ids = rng.choice(total, 1000, replace=False)
            began = time.monotonic()
            server.push(task, 0, 1, rows={"t": (ids, values)})
            waits.append((began, time.monotonic()))
            task += 1

    worker = threading.Thread(target=work)
    worker.start()
    stalls = []
    try:
        for step in range(8):
            directory = tmp_path / str(step)
            directory.mkdir()
            targets = server.hold()
            request = pb.SnapshotRequest(
                fence=server.fence, targets=targets.to_proto(), directory=str(directory)
            )
            began = time.monotonic()
            answer = server.call("Snapshot", request)
            ended = time.monotonic()
            stalls.append(answer.stall_ms)
            assert sum(1 for a, b in waits if began < a and b < ended) > 3  # pushes went on
            if min(stalls) < 10:
                break
    finally:
        stop.set()
        worker.join(20)
    # The stall covers the way between the two calls, which a busy machine stretches: the least of
    # a few is what the server adds.
    assert min(stalls) < 10, stalls
    rows = sum(len(files.read(p)["ids"]) for p in directory.glob("*part*"))
    assert rows == total


# ---- what can go wrong ----


def test_a_snapshot_without_a_hold_or_in_time_is_refused(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (server,) = start(1)
    request = pb.HoldRequest(fence=server.fence, timeout_ms=1000)
    assert not server.call("Hold", request).initialized
    server.initialize({}, {"t": 4})
    snapshot = pb.SnapshotRequest(fence=server.fence, directory=str(tmp_path))
    assert server.refusal("Snapshot", snapshot)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    server.hold(timeout_ms=50)
    snapshot.targets.CopyFrom(Watermarks(0, {5: 64}).to_proto())  # nobody pushes it
    assert "timed out" in server.refusal("Snapshot", snapshot)[1]
    assert not list(tmp_path.iterdir())
    server.push(5, 0, 64)  # the hold is over
    server.hold()
    snapshot.directory = str(tmp_path / "missing")
    assert server.refusal("Snapshot", snapshot)[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_a_disk_that_refuses_leaves_nothing_and_the_server_goes_on(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (server,) = start(1)
    server.initialize({}, {"t": 4, "u": 4})
    ids = np.arange(100)
    rows = {"t": (ids, np.ones((100, 4), np.float32))}
    server.push(0, 0, 1, rows=rows)
    # A folder in the place of the last file: works for root too, whom no mode stops.
    (tmp_path / "shard-0-of-1.table-1.part-0.safetensors").mkdir()
    targets = server.hold()
    snapshot = pb.SnapshotRequest(
        fence=server.fence, targets=targets.to_proto(), directory=str(tmp_path)
    )
    code, text = server.refusal("Snapshot", snapshot)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "Is a directory" in text
    assert [p.name for p in tmp_path.iterdir()] == ["shard-0-of-1.table-1.part-0.safetensors"]
    server.push(0, 1, 2, rows=rows)
    (tmp_path / "shard-0-of-1.table-1.part-0.safetensors").rmdir()
    snapshot.targets.CopyFrom(server.hold().to_proto())
    assert len(server.call("Snapshot", snapshot).files) == 3


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
        ({"dense": {"a": np.zeros(4, np.float32)}}, "parameter a: restored"),
        ({"dense": {"z": np.zeros(4, np.float32)}}, "parameter z: not in"),
        ({"tables": {"t": 8}}, "table t: dim 8, but 4"),
    ):
        (other,) = start(1, f"--restore={directory}")
        with pytest.raises(grpc.RpcError) as caught:
            other.initialize(**{"dense": DENSE, "tables": {"t": 4}, **change})
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert match in caught.value.details()
        other.stop()


def test_an_exported_model_without_its_tables_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"metadata\.json"):
        CheckpointReader(tmp_path)


def test_slots_are_matched_by_name() -> None:
    """A job may go on with another optimizer: what it shares with the old one it keeps."""
    info = pb.EmbeddingTableInfo(name="t", dim=2, initializer=pb.Initializer(kind="zeros"))

    def table(kind: str, **hyper: float) -> EmbeddingTable:
        config = pb.OptimizerConfig(kind=kind, groups=[pb.ParamGroup(hyper=hyper)])
        return EmbeddingTable(info, 0, Optimizers.from_proto(config))

    old = table("adam")
    old.apply(np.arange(3), np.ones((3, 2), np.float32), [0.1])
    old.core.begin_snapshot()
    (rows,) = old.snapshot_rows(100)
    new = table("adam", amsgrad=1)
    new.load(rows, old.slot_names)
    new.core.begin_snapshot()
    (again,) = new.snapshot_rows(100)
    assert new.slot_names == ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    np.testing.assert_array_equal(again.slots[:, :2], rows.slots)
    assert (again.slots[:, 2] == 0).all()


@pytest.mark.parametrize("values_only", [False, True], ids=["resume", "load"])
def test_the_age_of_a_row_counts_in_the_updates_of_this_job(
    tmp_path: Path, values_only: bool
) -> None:
    info = pb.EmbeddingTableInfo(
        name="t", dim=2, initializer=pb.Initializer(kind="zeros"), max_age=10
    )
    config = pb.OptimizerConfig(kind="sgd", groups=[pb.ParamGroup(hyper={"lr": 1})])
    optimizers = Optimizers.from_proto(config)

    def update(table: EmbeddingTable, times: int, *ids: int) -> None:
        for _ in range(times):
            table.apply(np.array(ids), np.ones((len(ids), 2), np.float32), [1.0])

    old = EmbeddingTable(info, 0, optimizers)
    update(old, 195, 1)
    update(old, 5, 1, 2)
    old.core.begin_snapshot()
    sizes = write_tables([(old, old.step)], tmp_path, "shard-0-of-1")
    manifest = {"job": "j", "strategy": "ps", "steps": 200, "shards": 1}
    layout.commit(tmp_path, Manifest(**manifest, files=sizes))
    new = CheckpointReader(tmp_path, values_only=values_only).table("t").restore(info, optimizers)
    assert new.step == (0 if values_only else 200)
    update(new, 9, 1)
    assert new.core.size == 2
    update(new, 4, 1)  # a sweep comes each quarter of the age
    assert new.core.size == 1

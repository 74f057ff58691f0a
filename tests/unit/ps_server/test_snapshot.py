"""Checkpoints: all shards of one moment, without a pause, into any number of servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from tests.waiting import HANG_S, wait_for
from torch_edl import _core
from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import pserver_pb2 as pb

INT64 = np.iinfo(np.int64)
IDS = np.concatenate([np.arange(-500, 500), [INT64.min, INT64.max]])


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
            more = servers[0].status().version + 10
            wait_for(lambda n=more: servers[0].status().version >= n or failures)
            directory = save(servers, steps=step)
            manifest = layout.read(directory)
            records = sum(manifest.watermarks.offsets.values())
            source = CheckpointReader(directory)
            values = source.dense()
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
            worker.join(HANG_S)
    assert not failures


def test_pushes_wait_for_a_small_part_of_a_snapshot_of_a_million_rows(
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
    shares = []
    try:
        for step in range(8):
            directory = tmp_path / str(step)
            directory.mkdir()
            targets = server.hold()
            request = pb.SnapshotRequest(
                fence=server.fence, targets=targets.to_proto(), directory=str(directory)
            )
            began = time.monotonic()
            answer = server.call(request)
            ended = time.monotonic()
            shares.append(answer.stall_ms / 1000 / (ended - began))
            assert sum(1 for a, b in waits if began < a and b < ended) > 3  # pushes went on
            if min(shares) < 0.1:
                break
    finally:
        stop.set()
        worker.join(HANG_S)
    # The stall covers the way between the two calls, which a busy machine stretches: the least of
    # a few is what the server adds. benchmarks/snapshot_stall.py measures it.
    assert min(shares) < 0.1, shares
    rows = sum(len(tensor_files.read(p)["ids"]) for p in directory.glob("*part*"))
    assert rows == total


# ---- what can go wrong ----


def test_a_snapshot_without_a_hold_or_in_time_is_refused(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (server,) = start(1)
    request = pb.HoldRequest(fence=server.fence, timeout_ms=1000)
    assert not server.call(request).initialized
    server.initialize({}, {"t": 4})
    snapshot = pb.SnapshotRequest(fence=server.fence, directory=str(tmp_path))
    assert server.refusal(snapshot)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    server.hold(timeout_ms=50)
    snapshot.targets.CopyFrom(Watermarks(0, {5: 64}).to_proto())  # nobody pushes it
    assert "timed out" in server.refusal(snapshot)[1]
    assert not list(tmp_path.iterdir())
    server.push(5, 0, 64)  # the hold is over
    server.hold()
    snapshot.directory = str(tmp_path / "missing")
    assert server.refusal(snapshot)[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_a_disk_that_refuses_is_reported_and_the_server_goes_on(
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
    code, text = server.refusal(snapshot)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "Is a directory" in text
    server.push(0, 1, 2, rows=rows)
    (tmp_path / "shard-0-of-1.table-1.part-0.safetensors").rmdir()
    snapshot.targets.CopyFrom(server.hold().to_proto())
    assert len(server.call(snapshot).snapshot.files) == 3

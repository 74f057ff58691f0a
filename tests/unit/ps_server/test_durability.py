"""A server with a journal that is killed at any moment comes back as it was acknowledged."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.unit.ps_server.journalled import (
    ADAM,
    ARGUMENTS,
    DENSE,
    IDS,
    Worker,
    begin,
    kill,
    reopened,
)
from tests.waiting import HANG_S
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import pserver_pb2 as pb

FAST = {("async", "never"), ("sync", "always")}


@pytest.mark.parametrize(
    ("mode", "fsync"),
    [
        pytest.param(mode, fsync, marks=[] if (mode, fsync) in FAST else pytest.mark.slow)
        for mode in ("async", "sync")
        for fsync in ("never", "interval", "always")
    ],
)
def test_a_server_that_is_killed_comes_back_as_it_was(
    start: Callable[..., Any], tmp_path: Path, mode: str, fsync: str
) -> None:
    root = tmp_path / "journal"
    alive = begin(start, root, mode, f"--fsync={fsync}")
    (whole,) = start(1, *ARGUMENTS[mode])
    whole.initialize(DENSE, {"t": 4}, **ADAM, max_age=30)
    workers = [Worker(alive), Worker(whole)]
    for incarnation in range(4, 8):
        for worker in workers:
            for _ in range(17):
                worker.push()
        kill(workers[0].server)
        (again,) = start(1, f"--journal={root}", f"--incarnation={incarnation}", *ARGUMENTS[mode])
        again.fence.incarnation = incarnation
        workers[0].server = again
        assert again.status().version == whole.status().version
        assert again.dense().tobytes() == whole.dense().tobytes()
        assert again.pull("t", IDS).tobytes() == whole.pull("t", IDS).tobytes()
        assert again.hold() == whole.hold()
        for server in (again, whole):
            server.call(pb.ReleaseRequest(fence=server.fence))


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_kill_while_pushes_are_under_way_loses_nothing_that_was_acknowledged(
    start: Callable[..., Any], tmp_path: Path, mode: str
) -> None:
    root = tmp_path / "journal"
    server = begin(start, root, mode)
    acknowledged = [0] * 4

    def work(task: int) -> None:
        rows = {"t": (IDS, np.full((100, 4), -1, np.float32))}
        with contextlib.suppress(grpc.RpcError):
            for step in range(1 << 20):
                server.push(task, step, step + 1, rows=rows, version=1 << 40)
                acknowledged[task] = step + 1

    threads = [threading.Thread(target=work, args=(task,)) for task in range(4)]
    for thread in threads:
        thread.start()
    while sum(acknowledged) < 200:
        assert server.process.poll() is None
    kill(server)
    for thread in threads:
        thread.join(HANG_S)
    found = reopened(root, mode)
    received = found["received"]
    for task, offset in enumerate(acknowledged):
        assert offset <= received.offset(task) <= offset + 1


def test_a_full_disk_refuses_pushes_until_there_is_room(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    root = tmp_path / "journal"
    server = begin(start, root, "async")
    worker = Worker(server)
    worker.push()
    before = server.dense().tobytes(), server.pull("t", IDS).tobytes(), server.status().version
    pid = server.process.pid
    limit = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    (path,) = root.glob("*/*.log")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limit[1]))
    for _ in range(3):
        with pytest.raises(grpc.RpcError) as caught:
            worker.push()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "journal: File too large" in caught.value.details()
        assert "the change was not made and may be repeated" in caught.value.details()
        after = server.dense().tobytes(), server.pull("t", IDS).tobytes(), server.status().version
        assert after == before
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    assert not worker.push().duplicate
    kill(server)
    assert reopened(root, "async")["version"] == 2
    assert os.path.getsize(path.parent.parent / "journal.json") > 0


def test_a_rejected_or_repeated_push_is_not_logged(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    root = tmp_path / "journal"
    server = begin(start, root, "async")
    worker = Worker(server)
    worker.push()
    (path,) = root.glob("*/*.log")
    size = path.stat().st_size
    worker.done = 0
    assert worker.push().duplicate
    gap = pb.PushGradientsRequest(
        fence=server.fence, range=pb.RecordRange(task_id=9, first=5, last=6)
    )
    assert server.refusal(gap)[0] == grpc.StatusCode.INVALID_ARGUMENT
    bad = {"t": (IDS, np.full((100, 4), np.nan, np.float32))}
    with pytest.raises(grpc.RpcError, match="must be finite"):
        server.push(9, 0, 1, rows=bad)
    with pytest.raises(grpc.RpcError, match="not finite in float32"):
        server.push(9, 0, 1, learning_rates=[np.inf])
    assert path.stat().st_size == size


def test_a_server_that_was_replaced_does_not_acknowledge_and_ends(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    root = tmp_path / "journal"
    first = begin(start, root, "async")
    worker = Worker(first)
    worker.push()
    server_args = [f"--journal={root}", "--incarnation=4", *ARGUMENTS["async"]]
    (second,) = start(1, *server_args)
    with pytest.raises(grpc.RpcError) as caught:
        worker.push()
    # The first server rejects the push, or is about to end, or has ended.
    codes = grpc.StatusCode
    assert caught.value.code() in (codes.FAILED_PRECONDITION, codes.CANCELLED, codes.UNAVAILABLE)
    assert first.process.wait(HANG_S) == 1
    second.fence.incarnation = 4
    worker.server = second
    assert not worker.push().duplicate
    assert second.status().version == 2
    with pytest.raises(pytest.fail.Exception, match="a later server has taken the shard over"):
        start(1, f"--journal={root}", "--incarnation=2")


def test_a_move_takes_the_pushes_that_wait_for_their_quorum(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """They were acknowledged: the tasks of workers that left continue behind them."""
    (server,) = start(1, *ARGUMENTS["sync"])
    server.initialize(DENSE, {"t": 4}, **ADAM)
    worker = Worker(server)
    for _ in range(4):  # an update of three, and one that waits
        worker.push()
    assert server.hold() == Watermarks(0, {0: 8, 1: 8, 2: 8})
    server.call(pb.ReleaseRequest(fence=server.fence))
    targets = server.hold(move=1)
    assert targets == Watermarks(0, {0: 8, 1: 8, 2: 8, 3: 8})
    (tmp_path / "cut").mkdir()
    answer = server.call(
        pb.SnapshotRequest(
            fence=server.fence, targets=targets.to_proto(), directory=str(tmp_path / "cut"), move=1
        )
    )
    assert answer.snapshot.version == 2

"""Sync mode: pushes wait for their quorum and become one update of their mean."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.ps_server.conftest import ones
from tests.waiting import HANG_S
from torch_edl.checkpoint import tensor_files
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import pserver_pb2 as pb


def test_a_quorum_of_pushes_is_one_update_of_their_mean(start: Callable[..., Any]) -> None:
    (server,) = start(1, "--mode=sync", "--grads-to-wait=2")
    server.initialize({"w": np.zeros(1, np.float32)}, {"t": 4})
    one, two = np.array([1]), np.array([1, 2])
    minus = np.array([-4], np.float32)
    server.push(0, 0, 64, dense=minus, rows={"t": (one, ones(one))})
    assert server.dense() == 0
    assert server.push(0, 0, 64, dense=minus, rows={"t": (one, ones(one))}).duplicate
    assert server.status().version == 0
    answer = server.push(1, 0, 64, dense=minus * 2, rows={"t": (two, ones(two))})
    assert answer.version == 1
    assert server.dense() == 6
    assert server.pull("t", two)[:, 0].tolist() == [1.0, 0.5]


def test_a_waiting_push_does_not_depend_on_the_memory_of_its_worker(
    start: Callable[..., Any],
) -> None:
    """The second push is written to the shared memory that the first one had."""
    (server,) = start(1, "--mode=sync", "--grads-to-wait=2")
    server.initialize({"w": np.zeros(1000, np.float32)}, {})
    for task in range(2):
        server.push(task, 0, 64, dense=np.full(1000, -4 * (task + 1), np.float32))
    assert server.dense().tolist() == 1000 * [6.0]


def test_gradients_that_are_too_old_are_not_accepted(start: Callable[..., Any]) -> None:
    (server,) = start(1, "--mode=sync", "--grads-to-wait=1", "--staleness=1")
    server.initialize({"w": np.zeros(1, np.float32)}, {})
    minus = np.array([-1], np.float32)
    for first in range(2):
        assert server.push(0, first, first + 1, dense=minus, version=0).accepted
    late = server.push(0, 2, 3, dense=minus, version=0)
    assert (late.accepted, late.version) == (False, 2)
    assert server.push(0, 2, 3, dense=minus, version=late.version).accepted
    assert server.dense() == 3


def test_flush_applies_a_partial_quorum(start: Callable[..., Any]) -> None:
    (server,) = start(1, "--mode=sync", "--grads-to-wait=8")
    server.initialize({"w": np.zeros(1, np.float32)}, {})
    for task, gradient in enumerate((-1, -2, -6)):
        server.push(task, 0, 64, dense=np.array([gradient], np.float32))
    assert server.call(pb.FlushRequest(fence=server.fence)).version == 1
    assert server.dense() == 3
    assert server.call(pb.FlushRequest(fence=server.fence)).version == 1


def test_servers_with_different_quorums_snapshot_the_same_records(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Which pushes met in a quorum may differ between servers; what a snapshot holds may not."""
    first, second = start(2, "--mode=sync", "--grads-to-wait=2", "--staleness=9")
    ids = np.array([1])
    rows = {"t": (ids, ones(ids))}
    for server in (first, second):
        server.initialize({}, {"t": 4})
        server.push(0, 0, 64, rows=rows)
    second.push(1, 0, 64, rows=rows)  # a quorum there; on the first, task 0 still waits
    targets = Watermarks.union([first.hold(), second.hold()])
    assert targets.offsets == {0: 64, 1: 64}

    late = [  # one is in the targets, one is not
        threading.Thread(target=lambda t=t: first.push(t, 0, 64, rows=rows)) for t in (2, 1)
    ]
    for thread in late:
        thread.start()
    for server in (first, second):
        server.call(
            pb.SnapshotRequest(
                fence=server.fence, targets=targets.to_proto(), directory=str(tmp_path)
            ),
        )
    for thread in late:
        thread.join(HANG_S)
        assert not thread.is_alive()
    for shard in (0, 1):
        saved = tensor_files.read(tmp_path / f"shard-{shard}-of-2.table-0.part-0.safetensors")
        assert saved["vectors"].tolist() == [[1.0] * 4]
    assert (first.pull("t", ids) == 1).all()  # task 2 waits for its quorum
    first.call(pb.FlushRequest(fence=first.fence))
    assert (first.pull("t", ids) == 2).all()

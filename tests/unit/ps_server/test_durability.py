"""A server with a journal that is killed at any moment comes back as it was acknowledged."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from torch_edl.config import TrainConfig
from torch_edl.ps_server.identity import Identity, run_of
from torch_edl.ps_server.journal import Journal
from torch_edl.ps_server.records import Entry, Kind
from torch_edl.ps_server.recovery import recover
from torch_edl.ps_server.shard import Shard
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

IDENTITY = Identity(job="job", shard=0, shards=1, model=1, run=run_of("secret"))
DENSE = {"b": np.zeros(3, np.float32), "w": np.ones((20, 30), np.float32)}
IDS = np.arange(-50, 50)
ADAM = {"kind": "adam", "hyper": {"lr": 0.1}}
RULES = {
    "async": TrainConfig(mode="async", learning_rate_by_staleness=True),
    "sync": TrainConfig(mode="sync", grads_to_wait=3, staleness=50),
}
ARGUMENTS = {
    "async": ["--learning-rate-by-staleness"],
    "sync": ["--mode=sync", "--grads-to-wait=3", "--staleness=50"],
}


def dump(shard: Shard) -> dict[str, Any]:
    """All that a shard is."""
    assert shard.dense is not None
    found: dict[str, Any] = {
        "version": shard.version,
        "applied": shard.watermarks(),
        "received": shard._received.copy(),
        "waiting": [(p.range.task_id, p.range.last, p.request) for p in shard._waiting],
        **{name: value.tobytes() for name, value in shard.dense.state().items()},
    }
    for table in shard.tables.values():
        table.core.begin_snapshot()
        parts = list(table.snapshot_rows(1 << 20))
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *(p.ids for p in parts)]))
        for field in ("ids", "vectors", "slots", "last_used", "count") if parts else ():
            values = np.concatenate([getattr(rows, field) for rows in parts])[order]
            found[f"{table.name}.{field}"] = values.tobytes()
        found[f"{table.name}.step"] = table.step
    return found


def reopen(root: Path, mode: str, incarnation: int = 1000) -> tuple[Shard, Journal]:
    journal = Journal(root, IDENTITY, incarnation, fsync="never")
    shard = Shard(RULES[mode], None, lambda: pytest.fail("half-way"), sink=journal)
    recover(shard, journal)
    return shard, journal


def reopened(root: Path, mode: str, incarnation: int = 1000) -> dict[str, Any]:
    """What the journal holds."""
    shard, journal = reopen(root, mode, incarnation)
    journal.close()
    return dump(shard)


class Worker:
    """Pushes as several workers would, without chance, and repeats what was not acknowledged."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.done = 0

    def push(self) -> pb.PushGradientsResponse:
        task, step = self.done % 4, self.done // 4
        rng = np.random.default_rng(self.done)
        ids = rng.choice(IDS, 20, replace=False)
        answer: pb.PushGradientsResponse = self.server.push(
            task,
            8 * step,
            8 * step + 8,
            dense=rng.standard_normal(603, np.float32),
            rows={"t": (ids, rng.standard_normal((20, 4), np.float32))},
            version=max(0, self.server.status().version - 2),
            without_gradient=[0] if self.done % 5 == 0 else [],
        )
        assert answer.accepted
        self.done += 1
        return answer


def begin(start: Callable[..., Any], root: Path, mode: str, *more: str) -> Any:
    (server,) = start(1, f"--journal={root}", "--incarnation=3", *ARGUMENTS[mode], *more)
    server.initialize(DENSE, {"t": 4}, **ADAM, max_age=30)
    return server


def kill(server: Any) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(20)


@pytest.mark.parametrize("fsync", ["never", "interval", "always"])
@pytest.mark.parametrize("mode", ["async", "sync"])
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
        thread.join(30)
    found = reopened(root, mode)
    received = found["received"]
    for task, offset in enumerate(acknowledged):
        assert offset <= received.offset(task) <= offset + 1


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


class Local:
    """A shard with all kinds of values and its journal, in this process."""

    def __init__(self, root: Path, mode: str) -> None:
        self.shard, self.journal = reopen(root, mode, 1)
        self.mode = mode
        self.rng = np.random.default_rng(5)
        self.pushes = 0
        values = {
            "counter": (np.array(7), -2, []),
            "frozen": (np.ones(2, np.float32), -1, []),
            "running": (np.ones(3, np.float32), -2, []),
            "w": (np.ones((4, 2), np.float32), 0, ["tied"]),
            "x": (np.ones(5, np.float32), 1, []),
        }
        groups = [pb.ParamGroup(hyper={"lr": 0.1}), pb.ParamGroup(hyper={"lr": 0.2, "beta1": 0.5})]
        self.change(
            "initialize",
            pb.PushDenseParametersRequest(
                optimizer=pb.OptimizerConfig(kind="adamw", groups=groups),
                parameters=[
                    pb.DenseParameter(name=n, value=codec.to_proto(v), group=g, aliases=a)
                    for n, (v, g, a) in values.items()
                ],
                seed=3,
            ),
        )
        normal = pb.Initializer(kind="normal", args={"std": 1.0})
        self.change(
            "add_tables",
            pb.PushEmbeddingTableInfosRequest(
                infos=[
                    pb.EmbeddingTableInfo(name="aged", dim=3, initializer=normal, max_age=8),
                    pb.EmbeddingTableInfo(
                        name="few", dim=2, group=1, max_rows=30, min_count=2, initializer=normal
                    ),
                    pb.EmbeddingTableInfo(name="unused", dim=1, initializer=normal),
                ]
            ),
        )

    def change(self, method: str, request: Any) -> Any:
        return getattr(self.shard, method)(request, request.SerializeToString())

    def nothing(self) -> Entry:
        """A change of nothing: the evictions of the last push are appended before it."""
        return Entry.of(Kind.TABLES, b"")

    def push(self) -> None:
        number, rng = self.pushes, self.rng
        self.pushes += 1
        task, step = number // 30, number % 30
        request = pb.PushGradientsRequest(
            range=pb.RecordRange(task_id=task, first=step, last=step + 1),
            version=max(0, self.shard.version - 1),
            dense=codec.to_proto(rng.standard_normal(18, np.float32)),
            without_gradient=[3] if number % 3 == 0 else [],
            learning_rates=[0.1, 0.3] if number % 2 else [],
            retired_before=max(0, task - 1),
        )
        if number % 4 == 0:
            value = codec.to_proto(np.array(number))
            request.exact.add(name="counter", value=value, group=-2)
        for name, dim, pool in (("aged", 3, 40), ("few", 2, 200)):
            ids = rng.choice(pool, 10, replace=False)
            request.tables.add(
                name=name,
                ids=ids.astype("<i8").tobytes(),
                values=codec.to_proto(rng.standard_normal((10, dim), np.float32)),
            )
        assert self.change("push", request).accepted

    def do(self) -> None:
        """Something that changes the shard, a pull in between included."""
        kind = self.rng.integers(10) if self.mode == "sync" else 5
        if kind == 0:
            self.shard.flush(pb.FlushRequest().SerializeToString())
        elif kind == 1:
            received = self.shard._received.copy()
            targets = Watermarks(received.retired_before, dict(list(received.offsets.items())[-1:]))
            request = pb.SnapshotRequest(targets=targets.to_proto())
            for table, _ in self.shard.cut(targets, request.SerializeToString()).tables:
                table.core.end_snapshot()
        else:
            self.push()
        out = np.empty((20, 3), np.float32)
        self.shard.table("aged").core.pull_into(self.rng.choice(60, 20, replace=False), out)


def dump_of_changes(shard: Shard) -> dict[str, Any]:
    """Without what pulls leave behind: rows as they start, and when rows were used."""
    found = dump(shard)
    for table in shard.tables.values():
        ids = np.frombuffer(found.pop(f"{table.name}.ids", b""), np.int64)
        count = np.frombuffer(found.pop(f"{table.name}.count", b""), np.int64)
        found.pop(f"{table.name}.last_used", None)
        found[f"{table.name}.trained"] = ids[count > 0].tolist()
        for field in ("vectors", "slots"):
            rows = np.frombuffer(found.pop(f"{table.name}.{field}", b""), np.float32)
            rows = rows.reshape(len(ids), rows.size // max(1, len(ids)))
            found[f"{table.name}.{field}"] = rows[count > 0].tobytes()
        found[f"{table.name}.count"] = count[count > 0].tolist()
    return found


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_everything_that_changes_a_shard_is_replayed(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "journal"
    local = Local(root, mode)
    for _ in range(200):
        local.do()
    assert 0 < local.shard.table("few").core.size <= 30
    expected = dump_of_changes(local.shard)
    local.shard._changes.append(local.nothing())
    local.journal.close()
    evicted = [r for r in reopen(root, mode)[1].records(after=0) if r.kind == Kind.EVICTION]
    assert len(evicted) > 10
    shard, journal = reopen(root, mode, 2000)
    journal.close()
    found = dump_of_changes(shard)
    for name, value in expected.items():
        assert found[name] == value, name


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
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert first.process.wait(20) == 1
    second.fence.incarnation = 4
    worker.server = second
    assert not worker.push().duplicate
    assert second.status().version == 2
    with pytest.raises(pytest.fail.Exception, match="a later server has taken the shard over"):
        start(1, f"--journal={root}", "--incarnation=2")


def test_sync_mode_recovers_the_cut_of_a_checkpoint_and_a_flush(
    start: Callable[..., Any], tmp_path: Path, save: Callable[..., Path]
) -> None:
    root = tmp_path / "journal"
    server = begin(start, root, "sync")
    worker = Worker(server)
    for _ in range(4):  # an update of three, and one that waits
        worker.push()
    targets = Watermarks(0, {0: 8, 1: 8, 2: 8, 3: 8})
    server.hold()
    (tmp_path / "checkpoint").mkdir()
    server.call(
        pb.SnapshotRequest(
            fence=server.fence, targets=targets.to_proto(), directory=str(tmp_path / "checkpoint")
        )
    )
    worker.push()
    server.call(pb.FlushRequest(fence=server.fence))
    worker.push()
    assert server.status().version == 3
    dense, rows = server.dense().tobytes(), server.pull("t", IDS).tobytes()
    kill(server)
    found = reopened(root, "sync")
    assert (found["version"], len(found["waiting"])) == (3, 1)
    (again,) = start(1, f"--journal={root}", "--incarnation=2000", *ARGUMENTS["sync"])
    again.fence.incarnation = 2000
    assert (again.dense().tobytes(), again.pull("t", IDS).tobytes()) == (dense, rows)

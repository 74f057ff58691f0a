"""Shards with a journal: a worker that trains one in a server, one in the process of the test, and
all that they are."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.ps_server.conftest import framed, whole
from tests.unit.ps_server.durability.journals import on_disk
from tests.waiting import HANG_S
from torch_edl.checkpoint.claim import run_id
from torch_edl.config import TrainConfig
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.records import Kind, LogEntry
from torch_edl.ps_server.recovery import recover
from torch_edl.ps_server.shard import ModelShard
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor
from torch_edl.wire.codec import Framed

IDENTITY = JournalIdentity(job="job", shard=0, shards=1, model=1, run=run_id("job", "secret"))
DENSE = {"b": np.zeros(3, np.float32), "w": np.ones((20, 30), np.float32)}
IDS = np.arange(-50, 50)
ADAM = {"kind": "adam", "hyper": {"lr": 0.1}}
RULES = {
    "async": TrainConfig(mode="async"),
    "sync": TrainConfig(mode="sync", grads_to_wait=3, staleness=50),
}
ARGUMENTS = {
    "async": [],
    "sync": ["--mode=sync", "--grads-to-wait=3", "--staleness=50"],
}


def dump(shard: ModelShard) -> dict[str, Any]:
    """All that a shard is."""
    assert shard.dense is not None
    found: dict[str, Any] = {
        "version": shard.version,
        "applied": shard.watermarks(),
        "received": shard._received.copy(),
        "waiting": [
            (p.task_id, p.last, whole(Framed(p.message, list(p.frames)))) for p in shard._waiting
        ],
        **{name: value.tobytes() for name, value in shard.dense.begin_snapshot()().items()},
    }
    for table in shard.tables.values():
        table.core.begin_snapshot()
        counted = [np.stack(list(vars(part).values())) for part in table.snapshot_counts(1 << 20)]
        found[f"{table.name}.counts"] = sorted(c for part in counted for c in part.T.tolist())
        parts = list(table.snapshot_rows(1 << 20))
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *(p.ids for p in parts)]))
        for field in ("ids", "vectors", "slots", "last_used", "count") if parts else ():
            values = np.concatenate([getattr(rows, field) for rows in parts])[order]
            found[f"{table.name}.{field}"] = values.tobytes()
        found[f"{table.name}.step"] = table.step
    return found


def reopen(root: Path, mode: str, incarnation: int = 1000) -> tuple[ModelShard, ChangeLog]:
    journal = on_disk(root, IDENTITY, incarnation, fsync="never")
    shard = ModelShard(RULES[mode], None, lambda: pytest.fail("half-way"), log=journal)
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
    server.process.wait(HANG_S)


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
                    pb.EmbeddingTableInfo(
                        name="aged",
                        dim=3,
                        initializer=normal,
                        max_age=8,
                        storage_dtype=tensor.DT_BFLOAT16,
                    ),
                    pb.EmbeddingTableInfo(
                        name="few",
                        dim=2,
                        group=1,
                        max_rows=30,
                        min_count=2,
                        initializer=normal,
                        storage_dtype=tensor.DT_INT8,
                    ),
                    pb.EmbeddingTableInfo(name="unused", dim=1, initializer=normal),
                ]
            ),
        )

    def change(self, method: str, request: Any) -> Any:
        given = framed(request)
        if method == "add_tables":
            return self.shard.add_tables(request)
        return getattr(self.shard, method)(given.message, given.frames)

    def nothing(self) -> LogEntry:
        """A change of nothing: the evictions of the last push are appended before it."""
        return LogEntry.of(Kind.TABLES, b"")

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
            self.shard.flush()
        elif kind == 1:
            received = self.shard._received.copy()
            targets = Watermarks(received.retired_before, dict(list(received.offsets.items())[-1:]))
            for table, _ in self.shard.cut(targets)[1][1]:
                table.core.end_snapshot()
        else:
            self.push()
        self.shard.table("aged").core.pull(self.rng.choice(60, 20, replace=False))


def dump_of_changes(shard: ModelShard) -> dict[str, Any]:
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

"""A real server process, and what a worker would say to it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import grpc
import numpy as np
import pytest

from tests.waiting import HANG_S
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.ps_client.partition import dense_owners
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec, services
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor
from torch_edl.wire.channel import Stub
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.stub import CALLS, DataStub

TOKEN = "secret"
DIM = 4


@contextmanager
def refused(match: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> Iterator[None]:
    """A server refuses the call in the block."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() == code, caught.value.details()
    assert match in caught.value.details()


def ones(ids: np.ndarray, dim: int = 4) -> np.ndarray:
    return np.full((len(ids), dim), -1, np.float32)  # SGD with rate 1 then adds one


def described(
    values: Mapping[str, np.ndarray],
    *,
    kind: str = "sgd",
    hyper: Mapping[str, float] | None = None,
    groups: Mapping[str, int] | None = None,
    seed: int = 0,
) -> pb.PushDenseParametersRequest:
    """The model of a worker: dense values, and their groups if they are not in group 0."""
    return pb.PushDenseParametersRequest(
        optimizer=pb.OptimizerConfig(kind=kind, groups=[pb.ParamGroup(hyper=hyper or {"lr": 1.0})]),
        parameters=[
            pb.DenseParameter(name=n, value=codec.to_proto(v), group=(groups or {}).get(n, 0))
            for n, v in sorted(values.items())
        ],
        seed=seed,
    )


def launch(
    *words: str, token: str = TOKEN, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """Starts the process of a server."""
    base = {k: v for k, v in os.environ.items() if k != ENV_MASTER}
    command = [sys.executable, "-m", "torch_edl.ps_server", *words]
    return subprocess.Popen(
        command, env={**base, ENV_TOKEN: token, **(env or {})}, text=True, **more
    )


@dataclass
class Server:
    """One server process, spoken to without the client's conveniences."""

    process: subprocess.Popen[str]
    log: IO[str]
    address: str
    shard: int
    shards: int
    endpoint: str
    stub: Stub = field(init=False)
    fence: pb.Fence = field(default_factory=lambda: pb.Fence(job="job", incarnation=3))
    _data: list[DataStub] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stub = Stub(services.PSERVER, self.address, TOKEN)
        self._local = threading.local()  # a connection of the data plane calls once at a time

    def call(self, request: Any) -> Any:
        if not isinstance(request, CALLS):
            return self.stub.call(request, timeout_s=HANG_S)
        if not hasattr(self._local, "data"):
            self._local.data = DataStub(self.endpoint, TOKEN)
            self._data.append(self._local.data)
        return whole(self._local.data.call(framed(request), timeout_s=HANG_S))

    def close(self) -> None:
        for each in (self.stub, *self._data):
            each.close()
        self._data.clear()

    def initialize(
        self,
        dense: Mapping[str, np.ndarray],
        tables: Mapping[str, int],
        *,
        kind: str = "sgd",
        hyper: Mapping[str, float] | None = None,
        groups: Mapping[str, int] | None = None,
        **info: Any,
    ) -> bool:
        """This shard's part of `dense` (name -> value) and `tables` (name -> dim), rows zero."""
        owners = dense_owners({n: v.size for n, v in dense.items()}, self.shards)
        mine = {n: v for n, v in dense.items() if owners[n] == self.shard}
        request = described(mine, kind=kind, hyper=hyper, groups=groups, seed=11)
        request.fence.CopyFrom(self.fence)
        answer = self.call(request)
        zeros = pb.Initializer(kind="zeros")
        self.call(
            pb.PushEmbeddingTableInfosRequest(
                fence=self.fence,
                infos=[
                    pb.EmbeddingTableInfo(name=n, dim=d, **{"initializer": zeros, **info})
                    for n, d in tables.items()
                ],
            ),
        )
        return bool(answer.accepted)

    def pull(self, table: str, ids: np.ndarray, *, read_only: bool = True) -> np.ndarray:
        request = pb.PullRequest(
            fence=self.fence,
            tables=[pb.TableIds(name=table, ids=ids.astype("<i8").tobytes())],
            read_only=read_only,
        )
        return codec.from_proto(self.call(request).vectors[0])

    def dense(self) -> np.ndarray:
        request = pb.PullRequest(fence=self.fence, dense=True, dense_version=-1)
        return codec.from_proto(self.call(request).dense)

    def push(
        self,
        task_id: int,
        first: int,
        last: int,
        *,
        dense: np.ndarray | None = None,
        rows: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
        **more: Any,
    ) -> pb.PushGradientsResponse:
        request = pb.PushGradientsRequest(
            fence=self.fence,
            range=pb.RecordRange(task_id=task_id, first=first, last=last),
            tables=[
                pb.TableGradient(
                    name=n, ids=ids.astype("<i8").tobytes(), values=codec.to_proto(values)
                )
                for n, (ids, values) in (rows or {}).items()
            ],
            **more,
        )
        if dense is not None:
            request.dense.CopyFrom(codec.to_proto(dense))
        answer: pb.PushGradientsResponse = self.call(request)
        return answer

    def hold(self, timeout_ms: int = 10_000, *, move: int = 0) -> Watermarks:
        request = pb.HoldRequest(fence=self.fence, timeout_ms=timeout_ms, move=move)
        return Watermarks.from_proto(self.call(request).watermarks)

    def status(self) -> pb.PserverStatusResponse:
        answer: pb.PserverStatusResponse = self.call(pb.PserverStatusRequest())
        return answer

    def refusal(self, request: Any) -> tuple[grpc.StatusCode, str]:
        """How the server refuses the request; it must."""
        with pytest.raises(grpc.RpcError) as caught:
            self.call(request)
        return caught.value.code(), caught.value.details()

    def stop(self) -> int:
        self.close()
        self.process.terminate()
        return self.process.wait(HANG_S)


def tensors(message: Any) -> Iterator[tensor.TensorProto]:
    """The tensors of a message whose contents may be frames."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is tensor.TensorProto.DESCRIPTOR:
            yield from value if descriptor.is_repeated else [value]
    if isinstance(message, pb.PushGradientsRequest):
        yield from (entry.values for entry in message.tables)
    if isinstance(message, pb.PushDenseParametersRequest):
        yield from (parameter.value for parameter in message.parameters)


def whole(given: Framed) -> Any:
    """The message with the contents of the frames in it."""
    message = type(given.message)()
    message.CopyFrom(given.message)
    for proto in tensors(message):
        if proto.frame:
            proto.tensor_content = bytes(codec.frame(given.frames, proto.frame))
            proto.frame = 0
    return message


def framed(request: Any) -> Framed:
    """A request with its contents beside it."""
    given = Framed(type(request)())
    given.message.CopyFrom(request)
    for entry in getattr(given.message, "tables", ()):
        if not entry.same_ids_as:
            given.frames.append(memoryview(entry.ids))
            entry.ids, entry.ids_frame = b"", len(given.frames)
    for proto in tensors(given.message):
        given.frames.append(memoryview(proto.tensor_content))
        proto.tensor_content, proto.frame = b"", len(given.frames)
    return given


Start = Callable[..., list[Server]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the servers of a job: `start(2, "--mode", "sync")`."""
    running: list[Server] = []

    def begin(shards: int, *args: str, env: Mapping[str, str] | None = None) -> list[Server]:
        begun = []
        for shard in range(shards):
            log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed below)
            which = [f"--shard={shard}", f"--shards={shards}", "--incarnation=3"]
            process = launch(
                "--job=job", *which, *args, env=env, stdout=subprocess.PIPE, stderr=log
            )
            begun.append((process, log))
        servers = []
        for shard, (process, log) in enumerate(begun):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                pytest.fail(f"no server: {log.read()}")
            *_, endpoint, address = line.split()
            servers.append(Server(process, log, address, shard, shards, endpoint))
        running.extend(servers)
        return servers

    yield begin
    for server in running:
        if server.process.poll() is None:
            server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.log.close()


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Makes a checkpoint as the master does: hold all, union of marks, snapshot all, commit."""

    def checkpoint_of(servers: list[Server], steps: int = 1) -> Path:
        directory = layout.step_dir(tmp_path / "checkpoints", steps)
        directory.mkdir(parents=True)
        targets = Watermarks.union(s.hold() for s in servers)
        answers = [
            s.call(
                pb.SnapshotRequest(
                    fence=s.fence, targets=targets.to_proto(), directory=str(directory)
                ),
            )
            for s in servers
        ]
        layout.seal(
            directory,
            Manifest(
                job="job",
                strategy="ps",
                steps=steps,
                shards=len(servers),
                watermarks=targets,
                files={f: z for a in answers for f, z in a.snapshot.files.items()},
                versions=tuple(a.snapshot.version for a in answers),
            ),
        )
        return directory

    return checkpoint_of

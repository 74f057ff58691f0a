"""Rows and gradients that travel as bfloat16 or float16: servers compute with their values in
float32, and keep all that they have in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.ps_server.conftest import TOKEN, Server
from tests.unit.ps_server.journalled import kill
from torch_edl.ps_client.client import BUFFER_GROUP, PsClient
from torch_edl.ps_client.partition import DenseGradient, PartitionedIds, TableIds
from torch_edl.wire import cluster_pb2, codec
from torch_edl.wire import pserver_pb2 as pb

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
DIM, IDS = 16, np.arange(-500, 5_500, 3)
INFO = pb.EmbeddingTableInfo(
    name="t", dim=DIM, initializer=pb.Initializer(kind="normal", args={"std": 1.0})
)
ADAGRAD = pb.OptimizerConfig(kind="adagrad", groups=[pb.ParamGroup(hyper={"lr": 0.1})])
WEIGHTS = np.linspace(-1, 1, 20_000, dtype=np.float32)


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    return torch.from_numpy(values).to(SHORT[kind]).float().numpy()


@pytest.fixture
def connect() -> Iterator[Callable[..., PsClient]]:
    clients: list[PsClient] = []

    def made(servers: list[Server], kind: str = "fp32", *, buffer: bool = False) -> PsClient:
        cluster = cluster_pb2.Cluster(
            servers=[
                cluster_pb2.Server(
                    address=each.address,
                    incarnation=each.fence.incarnation,
                    data_plane=each.endpoint,
                )
                for each in servers
            ]
        )
        clients.append(PsClient(cluster, job="job", token=TOKEN, wire_dtype=kind))
        dense = [pb.DenseParameter(name="w", value=codec.to_proto(WEIGHTS))]
        if buffer:
            mean = codec.to_proto(np.ones(3, np.float32))
            dense.insert(0, pb.DenseParameter(name="m", value=mean, group=BUFFER_GROUP))
        clients[-1].initialize(dense, [INFO], ADAGRAD, seed=5)
        return clients[-1]

    yield made
    for client in clients:
        client.close()


def pull(client: PsClient, *, read_only: bool = False) -> Any:
    table = TableIds("t", DIM, PartitionedIds.of(IDS, client.servers))
    return client.pull([table], read_only=read_only).wait()


def push(client: PsClient, step: int, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Gradients of a step; ``change`` is made to them before."""
    rng = np.random.default_rng(step)
    ids = PartitionedIds.of(rng.permutation(IDS)[:1000], client.servers)
    rows = change(rng.standard_normal((1000, DIM), np.float32))
    dense = []
    for layout in client.layout:
        size = sum(segment.size for segment in layout)
        dense.append(DenseGradient(change(rng.standard_normal(size, np.float32)), []))
    range_ = pb.RecordRange(task_id=1, first=step, last=step + 1)
    versions = [0] * client.servers
    pending = client.push(
        dense,
        [(TableIds("t", DIM, ids), rows)],
        records=range_,
        versions=versions,
        retired_before=0,
    )
    assert pending.wait()


@pytest.mark.parametrize("kind", SHORT)
def test_servers_compute_with_what_arrives(
    start: Callable[..., Any], connect: Callable[..., PsClient], kind: str
) -> None:
    short = connect(start(2), kind)
    whole = connect(start(2))
    for step in range(3):
        push(short, step, lambda values: values)
        push(whole, step, lambda values: rounded(values, kind))
    there, exact = pull(short, read_only=True), pull(whole)
    assert there.rows[0].tobytes() == exact.rows[0].tobytes()  # evaluations see what is there
    for mine, other in zip(there.dense, exact.dense, strict=True):
        assert (mine is None and other is None) or mine.tobytes() == other.tobytes()
    assert pull(short).rows[0].tobytes() == rounded(exact.rows[0], kind).tobytes()


def test_a_log_replays_to_the_same_bits(
    start: Callable[..., Any], connect: Callable[..., PsClient], tmp_path: Any
) -> None:
    args = [f"--journal={tmp_path / 'journal'}"]
    servers = start(1, *args)
    client = connect(servers, "bf16")
    for step in range(5):
        push(client, step, lambda values: values)
    before = pull(client, read_only=True)
    kill(servers[0])
    again = start(1, *args, "--incarnation=4")
    again[0].fence.incarnation = 4
    after = pull(connect(again, "bf16"), read_only=True)
    assert after.rows[0].tobytes() == before.rows[0].tobytes()
    assert after.dense[0].tobytes() == before.dense[0].tobytes()


def test_values_of_buffers_are_not_rounded(
    start: Callable[..., Any], connect: Callable[..., PsClient]
) -> None:
    client = connect(start(1), "bf16", buffer=True)
    (layout,) = client.layout
    flat = np.zeros(sum(segment.size for segment in layout), np.float32)
    (mean,) = (segment for segment in layout if segment.name == "m")
    flat[mean.start : mean.start + 3] = 1 + 2**-20
    records = pb.RecordRange(task_id=1, first=0, last=1)
    assert client.push(
        [DenseGradient(flat, [])], [], records=records, versions=[0], retired_before=0
    ).wait()
    (dense,) = pull(client).dense
    assert dense[mean.start : mean.start + 3].tolist() == [1 + 2**-20] * 3

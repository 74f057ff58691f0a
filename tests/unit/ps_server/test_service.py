"""A server process: what it takes, what it refuses, and that a push counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from tests.unit.ps_server.conftest import ones, refused
from tests.waiting import HANG_S
from torch_edl.wire import codec, services
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor
from torch_edl.wire.channel import Stub

DENSE = {"b": np.zeros(3, np.float32), "w": np.ones((2, 2), np.float32)}
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def test_pull_and_push(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    assert not server.call(pb.PullRequest(fence=server.fence, dense=True)).initialized
    assert server.initialize(DENSE, {"t": 4})
    assert server.dense().tolist() == [0, 0, 0, 1, 1, 1, 1]  # in the order of names
    ids = np.array([5, -1, 2**63 - 1, -(2**63)])
    answer = server.push(0, 0, 64, dense=np.full(7, -1, np.float32), rows={"t": (ids, ones(ids))})
    assert (answer.accepted, answer.duplicate, answer.version) == (True, False, 1)
    assert server.dense().tolist() == [1, 1, 1, 2, 2, 2, 2]
    assert (server.pull("t", ids) == 1).all()
    assert (server.pull("t", ids + 7) == 0).all()
    status = server.status()
    assert (status.version, dict(status.rows)) == (1, {"t": 4})


def test_one_request_reads_and_updates_many_tables_by_the_same_ids(
    start: Callable[..., Any],
) -> None:
    (server,) = start(1)
    server.initialize({}, {"a": 4, "b": 2})
    ids = np.array([3, 9])
    request = pb.PushGradientsRequest(fence=server.fence, range=pb.RecordRange(last=1))
    request.tables.add(name="a", ids=ids.tobytes(), values=codec.to_proto(ones(ids)))
    request.tables.add(name="b", same_ids_as=1, values=codec.to_proto(ones(ids, 2)))
    server.call(request)
    pull = pb.PullRequest(fence=server.fence)
    pull.tables.add(name="a", ids=ids.tobytes())
    pull.tables.add(name="b", same_ids_as=1)
    answer = server.call(pull)
    assert [codec.from_proto(v).tolist() for v in answer.vectors] == [
        [[1.0] * 4] * 2,
        [[1.0] * 2] * 2,
    ]
    pull.tables[1].same_ids_as = 2
    assert server.refusal(pull)[0] == INVALID


def test_dense_parameters_travel_only_when_they_are_news(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    server.initialize(DENSE, {})
    request = pb.PullRequest(fence=server.fence, dense=True, dense_version=0)
    assert not server.call(request).HasField("dense")
    server.push(0, 0, 1, dense=np.zeros(7, np.float32))
    answer = server.call(request)
    assert answer.version == 1
    assert len(codec.from_proto(answer.dense)) == 7


def test_buffers_are_assigned_and_frozen_places_ignored(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    values = {n: np.zeros(2, np.float32) for n in ("buffer", "frozen", "trained")}
    server.initialize(values, {}, groups={"buffer": -2, "frozen": -1})
    server.push(0, 0, 1, dense=np.array([7, np.inf, 0, 0, -1, -2], np.float32))
    assert server.dense().tolist() == [7, np.inf, 0, 0, 1, 2]


def test_a_range_is_applied_once(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    server.initialize({}, {"t": 4})
    ids = np.arange(3)
    rows = {"t": (ids, ones(ids))}
    assert [server.push(4, 0, 64, rows=rows).duplicate for _ in range(3)] == [False, True, True]
    assert server.push(4, 0, 32, rows=rows).duplicate
    assert (server.pull("t", ids) == 1).all()
    request = pb.GetWatermarksRequest(fence=server.fence, task_ids=[4, 5])
    assert list(server.call(request).offsets) == [64, 0]
    assert server.push(2, 0, 64, rows=rows, retired_before=3).duplicate  # as the push itself says
    assert (server.pull("t", ids) == 1).all()
    server.push(9, 0, 64, rows=rows, retired_before=9)
    assert server.push(4, 64, 128, rows=rows).duplicate  # retired: it was whole
    assert list(server.call(request).offsets) == [2**63 - 1, 2**63 - 1]


def test_the_same_push_from_many_connections_at_once_counts_once(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    server.initialize({}, {"t": 4})
    ids = np.arange(5000)
    answers: list[bool] = []

    def push() -> None:
        answers.append(server.push(1, 0, 64, rows={"t": (ids, ones(ids))}).duplicate)

    threads = [threading.Thread(target=push) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(answers) == [False] + [True] * 5
    assert (server.pull("t", ids) == 1).all()


def test_what_is_wrong_is_named_and_changes_nothing(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    server.initialize(DENSE, {"t": 4, "bounded": 4}, num_embeddings=100)
    ids = np.arange(3)
    good = {"t": (ids, ones(ids))}
    nan = ones(ids)
    nan[2, 1] = np.nan
    flat = np.zeros(7, np.float32)
    bad_flat = flat.copy()
    bad_flat[4] = np.inf

    def rejected(match: str, **push: Any) -> None:
        with refused(match):
            server.push(**{"task_id": 0, "first": 0, "last": 64, "rows": good, **push})

    rejected("gap", first=64, last=128)
    rejected("empty", last=0)
    rejected("'nothere'", rows={"t": good["t"], "nothere": good["t"]})
    rejected("the gradient of id 2", rows={"t": (ids, nan)})
    rejected("id 100 is outside [0, 100)", rows={"t": (np.array([1, 100, 2]), ones(ids))})
    rejected("id -1 is outside", rows={"t": (np.array([1, -1, 2]), ones(ids))})
    rejected("shape (3, 5)", rows={"t": (ids, ones(ids, 5))})
    rejected("shape (3, 4)", rows={"t": (ids[:2], ones(ids))})
    rejected("gradient of float64", rows={"t": (ids, ones(ids).astype(np.float64))})
    rejected("6 values", dense=flat[:6])
    rejected("parameter w", dense=bad_flat)
    rejected("2 learning rates", learning_rates=[0.1, 0.2])
    # The last table of a push is bad: the first must not be touched.
    rejected("the gradient of id 2", rows={"t": good["t"], "bounded": (ids, nan)}, dense=flat - 1)

    request = pb.PushGradientsRequest(fence=server.fence, range=pb.RecordRange(last=64))
    entry = request.tables.add(name="t", ids=ids.tobytes()[:-1], values=codec.to_proto(ones(ids)))
    code, text = server.refusal(request)
    assert (code, "23 bytes" in text) == (INVALID, True)
    entry.ids = ids.tobytes()
    entry.values.tensor_content = entry.values.tensor_content[:-4]
    assert server.refusal(request)[0] == INVALID
    pull = pb.PullRequest(
        fence=server.fence, tables=[pb.TableIds(name="t", ids=np.array([100]).tobytes())]
    )
    assert "id 100" in server.refusal(pull)[1]
    pull.row_dtype = 9
    code, text = server.refusal(pull)
    assert (code, "dtype number 9: expected one of" in text) == (INVALID, True)
    request.dense.CopyFrom(tensor.TensorProto(dtype=tensor.DT_INT32, tensor_content=b"1234"))
    code, text = server.refusal(request)
    assert (code, "dense gradient: int32" in text) == (INVALID, True)

    assert (server.pull("t", ids) == 0).all()
    assert server.dense().tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert server.status().version == 0
    assert server.push(0, 0, 64, rows=good).version == 1  # and it still serves


def test_callers_of_another_life_or_job_or_without_the_token(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    server.initialize(DENSE, {"t": 4})
    requests: list[Any] = [
        pb.PushDenseParametersRequest(),
        pb.PushEmbeddingTableInfosRequest(),
        pb.PullRequest(),
        pb.PushGradientsRequest(range=pb.RecordRange(last=1)),
        pb.GetWatermarksRequest(),
        pb.HoldRequest(timeout_ms=1000),
        pb.SnapshotRequest(),
        pb.ReleaseRequest(),
        pb.FlushRequest(),
    ]
    for request in requests:
        for fence in (pb.Fence(job="job", incarnation=2), pb.Fence(job="other", incarnation=3)):
            request.fence.CopyFrom(fence)
            code, text = server.refusal(request)
            assert code == grpc.StatusCode.FAILED_PRECONDITION, request
            assert "ask the master" in text
    stranger = Stub(services.PSERVER, server.address, "guess")
    with refused("", grpc.StatusCode.UNAUTHENTICATED):
        stranger.call(pb.PserverStatusRequest(), timeout_s=HANG_S)
    stranger.close()
    assert server.status().version == 0


def test_the_first_worker_says_what_to_hold(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    assert server.initialize(DENSE, {"t": 4})
    assert not server.initialize({n: v + 5 for n, v in DENSE.items()}, {"t": 4}, hyper={"lr": 2.0})
    assert server.dense().tolist() == [0, 0, 0, 1, 1, 1, 1]
    for change, match in (
        ({"dense": {"b": DENSE["b"]}}, "1"),
        ({"dense": {**DENSE, "w": np.ones(4, np.float32)}}, "(2, 2)"),
        ({"tables": {"t": 8}}, "dim 4"),
        ({"hyper": {"lr": 1.0, "momentum": 0.5}}, "optimizer"),
        ({"kind": "adam"}, "optimizer"),
        ({"groups": {"w": -1}}, "'w'"),
    ):
        arguments: dict[str, Any] = {"dense": DENSE, "tables": {"t": 4}, **change}
        with refused(match):
            server.initialize(**arguments)


def test_models_that_make_no_sense_are_refused(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    infos = pb.PushEmbeddingTableInfosRequest(
        fence=server.fence, infos=[pb.EmbeddingTableInfo(name="t", dim=4)]
    )
    assert "PushDenseParameters first" in server.refusal(infos)[1]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "lion"}, "lion"),
        ({"hyper": {"lr": 1.0, "rho": 2.0}}, "'rho'"),
        ({"groups": {"w": 3}}, "group 3"),
        ({"dense": {"w": np.ones(2, np.float64)}}, "float64"),
    ]
    for change, match in cases:
        arguments: dict[str, Any] = {"dense": DENSE, "tables": {}, **change}
        with refused(match):
            server.initialize(**arguments)
    assert not server.call(pb.PullRequest(fence=server.fence)).initialized
    tables: list[tuple[dict[str, Any], str]] = [
        ({"tables": {"t": 0}}, "dim 0"),
        ({"tables": {"../t": 4}}, "'../t'"),
        ({"tables": {"t": 4}, "initializer": pb.Initializer(kind="magic")}, "magic"),
        ({"tables": {"t": 4}, "group": 1}, "group 1"),
        ({"tables": {"t": 4}, "min_count": -1}, "min_count"),
    ]
    for change, match in tables:
        with refused(match):
            server.initialize(DENSE, **change)
    assert not server.status().rows


def test_the_rate_of_a_push(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    server.initialize({"w": np.zeros(1, np.float32)}, {})
    minus = np.array([-12], np.float32)
    server.push(0, 0, 1, dense=minus, version=0)
    assert server.dense() == 12
    server.push(0, 1, 2, dense=minus, version=1, learning_rates=[0.5])
    assert server.dense() == 18
    server.push(0, 2, 3, dense=minus, version=2)
    assert server.dense() == 18 + 12

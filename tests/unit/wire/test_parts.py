"""The parts of an encoded request."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from torch_edl.errors import UsageError
from torch_edl.wire import data_plane_pb2
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire.server import MOST_PARTS, require_few

HALF = MOST_PARTS // 2
PAD = "x" * (1 << 16)  # a small request is not looked at


def counted(message: Any) -> None:
    require_few(message.DESCRIPTOR, message.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        pb.NodeReportRequest(node=PAD, running=[pb.RunningProcess(pid=7)] * HALF),
        pb.LeaseRequest(held=range(HALF // 4)),
        ps.PushGradientsRequest(learning_rates=[0.1] * HALF),
        ps.PushDenseParametersRequest(
            parameters=[ps.DenseParameter(name=PAD, aliases=["a"] * HALF)]
        ),
    ],
    ids=["messages", "packed integers", "packed floats", "texts"],
)
def test_parts_are_counted_wherever_they_are(message: Any) -> None:
    counted(message)
    more = type(message)()
    for _ in range(9):
        more.MergeFrom(message)
    with pytest.raises(UsageError, match="parts; send fewer at once"):
        counted(more)


def test_parts_of_a_part_count() -> None:
    deep = data_plane_pb2.DataRequest()
    deep.pull.tables.extend([ps.TableIds()] * MOST_PARTS)
    with pytest.raises(UsageError, match="DataRequest: more than 262144 parts"):
        counted(deep)


def test_the_contents_of_tensors_are_no_parts() -> None:
    push = ps.PushGradientsRequest()
    push.dense.tensor_content = bytes(10 * MOST_PARTS)
    counted(push)


def test_bytes_of_chance_end_in_an_error_or_are_few() -> None:
    chance = random.Random(3)
    for _ in range(200):
        raw = chance.randbytes(1 << 17)
        with pytest.raises((DecodeError, UsageError)):
            require_few(pb.NodeReportRequest.DESCRIPTOR, raw)

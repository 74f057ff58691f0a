"""A message and its frames are the message with the contents in it."""

from __future__ import annotations

import numpy as np
import pytest

from torch_edl.errors import UsageError
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.framed import Framed


def push(rows: int, dim: int) -> tuple[Framed, pb.PushGradientsRequest]:
    """A push with frames, and without."""
    rng = np.random.default_rng(rows)
    dense, values = rng.random(rows + 3, np.float32), rng.random((rows, dim), np.float32)
    ids = rng.integers(-(2**63), 2**63, rows)
    given = Framed(pb.PushGradientsRequest())
    plain = pb.PushGradientsRequest()
    for message in (given.message, plain):
        message.fence.job, message.fence.incarnation = "j", 2**40
        message.range.task_id, message.range.last = 300, 7
        message.learning_rates.extend([0.5, 1e-9])
        message.without_gradient.extend([0, 200])
        message.exact.add(name="n", value=codec.to_proto(np.array([2**40])))
    given.put(given.message.dense, dense)
    plain.dense.CopyFrom(codec.to_proto(dense))
    for name in ("a", "b"):
        entry, other = given.message.tables.add(name=name), plain.tables.add(name=name)
        if name == "a":
            given.put_ids(entry, ids)
            other.ids = ids.tobytes()
        else:
            entry.same_ids_as = other.same_ids_as = 1
        given.put(entry.values, values)
        other.values.CopyFrom(codec.to_proto(values))
    return given, plain


@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (1, 1), (5, 3), (1000, 16), (70_000, 8)])
def test_both_ways_say_the_same(rows: int, dim: int) -> None:
    given, plain = push(rows, dim)
    assert given.whole() == plain
    assert pb.PushGradientsRequest.FromString(given.encoded()) == plain
    assert pb.PushGradientsRequest.FromString(Framed(plain).encoded()) == plain
    assert Framed(plain).whole() is plain


def test_a_frame_that_is_not_there_is_named() -> None:
    given, _ = push(5, 3)
    given.frames.pop()
    for make in (given.whole, given.encoded):
        with pytest.raises(UsageError, match="frame 4: the message has 3"):
            make()

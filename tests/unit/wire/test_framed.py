"""The contents of tensors are frames beside their message."""

from __future__ import annotations

import numpy as np
import pytest

from torch_edl.errors import UsageError
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.data_plane.framed import LARGE_BYTES, Framed

IDS = np.array([3, -(2**63), 2**63 - 1])
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_a_message_names_its_frames_by_their_places() -> None:
    given = Framed(pb.PushGradientsRequest())
    given.put(given.message.dense, VALUES)
    entry = given.message.tables.add(name="t")
    given.put_ids(entry, IDS)
    given.put_floats(entry.values, VALUES[:0], codec.FLOAT_DTYPES["bf16"])
    assert [len(frame) for frame in given.frames] == [24, 24, 0]
    assert (given.message.dense.frame, entry.ids_frame, entry.values.frame) == (1, 2, 3)
    assert not given.message.dense.tensor_content
    assert codec.from_proto(given.message.dense, given.frames).tolist() == VALUES.tolist()
    ids = codec.entry_ids(entry, [], given.frames)
    assert codec.ids_from_bytes(ids).tolist() == IDS.tolist()
    assert codec.from_proto(entry.values, given.frames).shape == (0, 2)
    with pytest.raises(UsageError, match="frame 3: the message has 2"):
        codec.from_proto(entry.values, given.frames[:2])


def test_only_a_large_content_becomes_a_frame() -> None:
    large = np.zeros(LARGE_BYTES // 4, np.float32)
    given = Framed(pb.PushDenseParametersRequest())
    for value in (VALUES, large, IDS):
        given.put_large(codec.to_proto(value), given.message.parameters.add().value)
    assert list(map(len, given.frames)) == [LARGE_BYTES]
    assert given.message.ByteSize() < 200
    for parameter, value in zip(given.message.parameters, (VALUES, large, IDS), strict=True):
        assert (codec.from_proto(parameter.value, given.frames) == value).all()

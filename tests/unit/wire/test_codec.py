"""Values as shorter floats, and the contents of tensors as frames beside their message."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torch_edl.errors import UsageError
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor
from torch_edl.wire.codec import LARGE_BYTES, Framed

IDS = np.array([3, -(2**63), 2**63 - 1])
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)


def travelled(values: np.ndarray, dtype: int) -> np.ndarray:
    message = Framed(tensor.TensorProto())
    message.put_floats(message.message, values, dtype)
    return codec.floats(message.message, message.frames)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_floats_arrive_as_torch_rounds_them(kind: str) -> None:
    bits = np.random.default_rng(3).integers(0, 1 << 32, 100_000, np.uint32)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 65504, 1e-45, 2**-24, 1 + 2**-8, 1 + 3 * 2**-8]
    values = np.concatenate([bits.view(np.float32), np.array(special, np.float32)])
    if kind == "fp16":  # what is beyond its range has a test of its own
        values = values[~(np.isfinite(values) & (np.abs(values) > 65504))]
    there = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    wanted = torch.from_numpy(values).to(there).float().numpy()
    found = travelled(values.reshape(2, -1), codec.FLOAT_DTYPES[kind]).reshape(-1)
    nan = np.isnan(values)
    assert (np.isnan(found) == nan).all()
    assert found[~nan].tobytes() == wanted[~nan].tobytes()


def test_fp32_arrives_as_it_is() -> None:
    values = np.random.default_rng(4).standard_normal((3, 5), np.float32)
    assert travelled(values, tensor.DT_FLOAT).tobytes() == values.tobytes()


def test_finite_values_stay_finite_in_fp16() -> None:
    values = np.array([1e38, -1e5, 65520, np.inf, -np.inf, np.nan], np.float32)
    found = travelled(values, tensor.DT_HALF).tolist()
    assert found[:5] == [65504, -65504, 65504, float("inf"), float("-inf")]
    assert np.isnan(found[5])


def test_other_types_are_no_floats() -> None:
    with pytest.raises(
        UsageError, match=r"dtype number 9: expected one of 1 \(fp32\), 14 \(bf16\)"
    ):
        travelled(np.zeros(3, np.float32), tensor.DT_INT64)
    with pytest.raises(UsageError, match=r"int64 of shape \(2,\); expected float32"):
        codec.floats(codec.to_proto(np.arange(2)))


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

"""Messages whose tensor contents are sent as separate frames, to avoid copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor

LARGE_BYTES = 1 << 20
"""Least bytes of a content that is always sent as a frame."""


@dataclass
class Framed:
    """A message and its frames.

    Example:
        >>> pull = Framed(pb.PullRequest())
        >>> pull.put_ids(pull.message.tables.add(name="t"), np.arange(3))
    """

    message: Any
    frames: list[memoryview] = field(default_factory=list)

    def put(self, proto: tensor.TensorProto, array: codec.Array) -> None:
        """Attach an array as the content of an empty tensor; the array must not change afterwards.

        Raises:
            UsageError: the dtype is not supported.
        """
        self.frames.append(_view(codec.describe(proto, array)))
        proto.frame = len(self.frames)

    def put_floats(self, proto: tensor.TensorProto, array: codec.Array, dtype: int) -> None:
        """Attach float32 values, converted to one of
        :data:`~torch_edl.wire.codec.FLOAT_DTYPES`, see :meth:`put`.

        Raises:
            UsageError: the dtype is not in :data:`~torch_edl.wire.codec.FLOAT_DTYPES`.
        """
        self.frames.append(_view(codec.describe_floats(proto, array, dtype)))
        proto.frame = len(self.frames)

    def put_narrow(self, proto: tensor.TensorProto, array: codec.Array, dtype: int) -> None:
        """Attach values that have already been converted to the bits of the dtype."""
        codec.describe_shape(proto, array.shape, dtype)
        self.frames.append(_view(array))
        proto.frame = len(self.frames)

    def put_large(self, given: tensor.TensorProto, proto: tensor.TensorProto) -> None:
        """Copy an encoded tensor into an empty one, with its content as a frame if the content is
        large. Small contents stay in the message, since the number of frames is limited."""
        if len(given.tensor_content) < LARGE_BYTES:
            proto.CopyFrom(given)
            return
        proto.dtype = given.dtype
        proto.tensor_shape.CopyFrom(given.tensor_shape)
        self.frames.append(memoryview(given.tensor_content))
        proto.frame = len(self.frames)

    def put_ids(self, entry: pb.TableIds | pb.TableGradient, ids: codec.Ids) -> None:
        """Attach ids (n,) to an entry of the message."""
        self.frames.append(_view(ids.astype("<i8", copy=False)))
        entry.ids_frame = len(self.frames)

    def whole(self) -> Any:
        """Return a copy of the message that contains the frames.

        Raises:
            UsageError: the message refers to a missing frame.
        """
        if not self.frames:
            return self.message
        message = type(self.message)()
        message.CopyFrom(self.message)
        for entry in message.tables if isinstance(message, _WITH_IDS) else ():
            if entry.ids_frame:
                entry.ids = bytes(codec.frame(self.frames, entry.ids_frame))
                entry.ids_frame = 0
        for proto in tensors(message):
            if proto.frame:
                proto.tensor_content = bytes(codec.frame(self.frames, proto.frame))
                proto.frame = 0
        return message

    def encoded(self) -> bytes:
        """Encode a push as :meth:`whole` would, with a single copy of the contents.

        Raises:
            UsageError: the message refers to a missing frame.
        """
        push: pb.PushGradientsRequest = self.message
        rest = pb.PushGradientsRequest()
        rest.CopyFrom(push)
        rest.ClearField("dense")
        rest.ClearField("tables")
        parts: list[bytes | memoryview] = [rest.SerializeToString()]
        if push.HasField("dense"):
            parts += nested(_DENSE, self._tensor(push.dense))
        for entry in push.tables:
            head = pb.TableGradient(name=entry.name, same_ids_as=entry.same_ids_as, ids=entry.ids)
            inner: list[bytes | memoryview] = [head.SerializeToString()]
            if entry.ids_frame:
                inner += nested(_IDS, [codec.frame(self.frames, entry.ids_frame)])
            inner += nested(_VALUES, self._tensor(entry.values))
            parts += nested(_TABLES, inner)
        return b"".join(parts)

    def _tensor(self, proto: tensor.TensorProto) -> list[bytes | memoryview]:
        if not proto.frame:
            return [proto.SerializeToString()]
        head = tensor.TensorProto(dtype=proto.dtype, tensor_shape=proto.tensor_shape)
        content = codec.frame(self.frames, proto.frame)
        return [head.SerializeToString(), *nested(_CONTENT, [content])]


def _view(array: codec.Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def nested(field: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Encode a length-delimited field; return its header and its parts."""
    return [length_delimited(field, sum(map(len, parts))), *parts]


def length_delimited(field: int, length: int) -> bytes:
    """Encode the header of a length-delimited field."""
    return _varint(field << 3 | 2) + _varint(length)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(message: Any, field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_DENSE = _number(pb.PushGradientsRequest, "dense")
_TABLES = _number(pb.PushGradientsRequest, "tables")
_IDS = _number(pb.TableGradient, "ids")
_VALUES = _number(pb.TableGradient, "values")
_CONTENT = _number(tensor.TensorProto, "tensor_content")


_WITH_IDS = pb.PullRequest | pb.PushGradientsRequest


def tensors(message: Any) -> Iterator[tensor.TensorProto]:
    """Yield the tensors of a message whose contents may be frames."""
    if isinstance(message, pb.PushGradientsRequest | pb.PullResponse) and message.HasField("dense"):
        yield message.dense
    if isinstance(message, pb.PushGradientsRequest):
        yield from (entry.values for entry in message.tables)
    if isinstance(message, pb.PullResponse):
        yield from message.vectors
    if isinstance(message, pb.PushDenseParametersRequest):
        yield from (parameter.value for parameter in message.parameters)
    if isinstance(message, pb.ReadRowsResponse):
        yield from (message.ids, message.vectors)

"""Messages whose tensor contents are sent as separate frames, to avoid copies."""

from __future__ import annotations

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


def _view(array: codec.Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

"""Messages with the contents of their tensors beside them, as frames, so that nothing copies them
into a message or out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor


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
        """Lets an empty tensor of the message have an array, which must not change any more.

        Raises:
            UsageError: the dtype cannot travel.
        """
        self.frames.append(_view(codec.describe(proto, array)))
        proto.frame = len(self.frames)

    def put_ids(self, entry: pb.TableIds | pb.TableGradient, ids: codec.Ids) -> None:
        """Lets an entry of the message have ids (n,)."""
        self.frames.append(_view(ids.astype("<i8", copy=False)))
        entry.ids_frame = len(self.frames)

    def whole(self) -> Any:
        """A copy of the message, with the contents in it.

        Raises:
            UsageError: the message names a frame that there is not.
        """
        if not self.frames:
            return self.message
        message = type(self.message)()
        message.CopyFrom(self.message)
        for entry in getattr(message, "tables", ()):
            if entry.ids_frame:
                entry.ids = bytes(codec.frame(self.frames, entry.ids_frame))
                entry.ids_frame = 0
        for proto in tensors(message):
            if proto.frame:
                proto.tensor_content = bytes(codec.frame(self.frames, proto.frame))
                proto.frame = 0
        return message


def _view(array: codec.Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def tensors(message: Any) -> Iterator[tensor.TensorProto]:
    """The tensors of a message that may lie beside it."""
    if isinstance(message, pb.PushGradientsRequest | pb.PullResponse) and message.HasField("dense"):
        yield message.dense
    if isinstance(message, pb.PushGradientsRequest):
        yield from (entry.values for entry in message.tables)
    if isinstance(message, pb.PullResponse):
        yield from message.vectors

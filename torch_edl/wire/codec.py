"""Convert arrays to and from :class:`TensorProto`, without a copy where possible. Contents are in a
message, or are sent beside it as frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire import tensor_pb2 as pb

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Frames = Sequence[memoryview]
"""Contents of tensors that are sent beside a message."""

_TO_NUMPY: dict[int, np.dtype[Any]] = {
    pb.DT_FLOAT: np.dtype("<f4"),
    pb.DT_DOUBLE: np.dtype("<f8"),
    pb.DT_HALF: np.dtype("<f2"),
    pb.DT_INT64: np.dtype("<i8"),
    pb.DT_INT32: np.dtype("<i4"),
    pb.DT_INT16: np.dtype("<i2"),
    pb.DT_INT8: np.dtype("<i1"),
    pb.DT_UINT8: np.dtype("<u1"),
    pb.DT_BOOL: np.dtype("?"),
}
_FROM_NUMPY = {v: k for k, v in _TO_NUMPY.items()}

FLOAT_DTYPES = {"fp32": pb.DT_FLOAT, "bf16": pb.DT_BFLOAT16, "fp16": pb.DT_HALF}
"""Types in which float32 values are sent, by name."""
STORAGE_DTYPES = {**FLOAT_DTYPES, "int8": pb.DT_INT8}
"""Types in which tables store float32 values, by name."""
_SHORTER = {
    "bf16": (_core.to_bfloat16, _core.from_bfloat16),
    "fp16": (_core.to_half, _core.from_half),
}
LARGE_BYTES = 1 << 20
"""Least bytes of a content that is always sent as a frame."""


def to_proto(array: Array) -> pb.TensorProto:
    """Encode an array as a message with its dtype, shape and little-endian content.

    Raises:
        UsageError: the dtype is not supported by TensorProto.
    """
    proto = pb.TensorProto()
    proto.tensor_content = describe(proto, array).tobytes()
    return proto


def describe(proto: pb.TensorProto, array: Array) -> Array:
    """Fill dtype and shape of an empty message; return the array in little-endian order.

    Raises:
        UsageError: the dtype is not supported by TensorProto.
    """
    little = array.dtype.newbyteorder("<")
    dtype = _FROM_NUMPY.get(little)
    if dtype is None:
        raise UsageError(f"dtype {array.dtype} cannot travel: use a float or an integer type")
    describe_shape(proto, array.shape, dtype)
    return array.astype(little, copy=False)


def describe_shape(proto: pb.TensorProto, shape: Sequence[int], dtype: int) -> None:
    """Fill dtype and shape of an empty message."""
    proto.dtype = dtype  # type: ignore[assignment]
    for size in shape:
        proto.tensor_shape.dim.add(size=size)


def float_name(dtype: int, known: Mapping[str, int] = FLOAT_DTYPES) -> str:
    """Return the name of a dtype number in :data:`FLOAT_DTYPES` or :data:`STORAGE_DTYPES`.

    Raises:
        UsageError: the dtype is not there.
    """
    for name, number in known.items():
        if number == dtype:
            return name
    names = ", ".join(f"{number} ({name})" for name, number in known.items())
    raise UsageError(f"rows of dtype number {dtype}: expected one of {names}")


def frame(frames: Frames, place: int) -> memoryview:
    """Return the frame at a position, counted from 1.

    Raises:
        UsageError: the message has fewer frames.
    """
    if not 1 <= place <= len(frames):
        raise UsageError(f"frame {place}: the message has {len(frames)}")
    return frames[place - 1]


def content_of(proto: pb.TensorProto, frames: Frames) -> bytes | memoryview:
    """Return the content of a tensor, from its frame or the message; see :func:`frame`."""
    return frame(frames, proto.frame) if proto.frame else proto.tensor_content


def from_proto(proto: pb.TensorProto, frames: Frames = ()) -> Array:
    """Decode a tensor as a read-only view of its content; bfloat16 is widened to float32.

    Args:
        frames: frames of the message.

    Raises:
        UsageError: the dtype is unknown, or the content does not match the shape.
    """
    shape = tuple(d.size for d in proto.tensor_shape.dim)
    content = content_of(proto, frames)
    if proto.dtype == pb.DT_BFLOAT16:
        _check_size(shape, 2, len(content))
        return _core.from_bfloat16(_aligned(np.frombuffer(content, "<u2"))).reshape(shape)
    dtype = _TO_NUMPY.get(proto.dtype)
    if dtype is None:
        raise UsageError(f"tensor of dtype number {proto.dtype}: not one that is supported here")
    _check_size(shape, dtype.itemsize, len(content))
    return _aligned(np.frombuffer(content, dtype)).reshape(shape)


def floats(proto: pb.TensorProto, frames: Frames = ()) -> npt.NDArray[np.float32]:
    """Decode a tensor as :func:`from_proto` does, and widen it to float32.

    Raises:
        UsageError: as :func:`from_proto`, or the dtype is not in :data:`FLOAT_DTYPES`.
    """
    array = from_proto(proto, frames)
    if proto.dtype == pb.DT_HALF:
        return _core.from_half(array.view("<u2").reshape(-1)).reshape(array.shape)
    if proto.dtype not in FLOAT_DTYPES.values():
        raise UsageError(f"{array.dtype} of shape {array.shape}; expected float32")
    return array


def name_of(dtype: int) -> str:
    """Return numpy's name of a dtype number."""
    known = _TO_NUMPY.get(dtype)
    return known.name if known is not None else f"dtype number {dtype}"


def _check_size(shape: tuple[int, ...], itemsize: int, got: int) -> None:
    if any(s < 0 for s in shape) or math.prod(shape) * itemsize != got:
        raise UsageError(f"tensor of shape {shape}: {got} bytes of content do not fill it")


def count_ids(content: bytes | memoryview) -> int:
    """Return the number of packed ids; raise UsageError if the size is no multiple of 8 bytes."""
    if len(content) % 8:
        raise UsageError(f"ids of {len(content)} bytes: not a whole number of int64")
    return len(content) // 8


def ids_from_bytes(content: bytes | memoryview) -> Ids:
    """Decode packed little-endian ids as a read-only int64 view (n,)."""
    count_ids(content)
    return _aligned(np.frombuffer(content, "<i8"))


def _aligned(array: Array) -> Array:
    """Return the array, copied if it is not aligned: a small frame may start at any address."""
    return array if array.flags.aligned else array.copy()


def entry_ids(
    entry: ps.TableIds | ps.TableGradient, before: Sequence[bytes | memoryview], frames: Frames = ()
) -> bytes | memoryview:
    """Return a copy of the packed ids of an entry, or those of the earlier entry that it names.

    Args:
        before: packed ids of the earlier entries.
        frames: frames of the message.

    Raises:
        UsageError: ``same_ids_as`` or ``ids_frame`` refers to a missing entry or frame.
    """
    if not entry.same_ids_as:
        return bytes(frame(frames, entry.ids_frame)) if entry.ids_frame else entry.ids
    if not 1 <= entry.same_ids_as <= len(before):
        raise UsageError(
            f"table {entry.name}: the ids of entry {entry.same_ids_as}, "
            f"but {len(before)} come before it"
        )
    return before[entry.same_ids_as - 1]


class Room:
    """Memory of the caller for the frames of an answer.

    Args:
        memory: the memory (n,), of bytes.
    """

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        self._used = 0

    def take(self, size: int) -> npt.NDArray[np.uint8] | None:
        """Return unused bytes (size,), aligned to 64 bytes; None if there are not enough."""
        begin = self._used
        if begin + size > len(self._memory):
            return None
        self._used = begin + size + -size % 64
        return self._memory[begin : begin + size]

    @property
    def rest(self) -> npt.NDArray[np.uint8]:
        """The unused bytes."""
        return self._memory[self._used :]


@dataclass
class Framed:
    """A message and its frames.

    Example:
        >>> pull = Framed(ps.PullRequest())
        >>> pull.put_ids(pull.message.tables.add(name="t"), np.arange(3))
    """

    message: Any
    frames: list[memoryview] = field(default_factory=list)
    answer_bytes: int = 0
    """Upper bound of the bytes of all frames in the answer, each rounded up to 64 bytes; 0: the
    answer does not need memory of the caller."""
    room: Room | None = None
    """Memory of the caller for the frames of the answer, if this is a received call."""
    lent: bool = False
    """True if this is a received call whose frames are memory of the caller, which may change as
    soon as the call is answered."""

    def put(self, proto: pb.TensorProto, array: Array) -> None:
        """Attach an array as the content of an empty tensor; the array must not change afterwards.

        Raises:
            UsageError: the dtype is not supported.
        """
        self._attach(proto, describe(proto, array))

    def put_floats(self, proto: pb.TensorProto, array: Array, dtype: int) -> None:
        """Attach float32 values, rounded to one of :data:`FLOAT_DTYPES`; see :meth:`put`. With
        fp16, finite values beyond its range become the largest value.

        Raises:
            UsageError: the dtype is not in :data:`FLOAT_DTYPES`.
        """
        if dtype == pb.DT_FLOAT:
            self.put(proto, array)
            return
        narrow, _ = _SHORTER[float_name(dtype)]
        values = narrow(np.ascontiguousarray(array, np.float32).reshape(-1))
        self.put_narrow(proto, values.reshape(array.shape), dtype)

    def put_narrow(self, proto: pb.TensorProto, array: Array, dtype: int) -> None:
        """Attach values that have already been converted to the bits of the dtype."""
        describe_shape(proto, array.shape, dtype)
        self._attach(proto, array)

    def put_large(self, given: pb.TensorProto, proto: pb.TensorProto) -> None:
        """Copy an encoded tensor into an empty one, with its content as a frame if the content is
        large. Small contents stay in the message, since the number of frames is limited."""
        if len(given.tensor_content) < LARGE_BYTES:
            proto.CopyFrom(given)
            return
        proto.dtype = given.dtype
        proto.tensor_shape.CopyFrom(given.tensor_shape)
        self.frames.append(memoryview(given.tensor_content))
        proto.frame = len(self.frames)

    def put_ids(self, entry: ps.TableIds | ps.TableGradient, ids: Ids) -> None:
        """Attach ids (n,) to an entry of the message."""
        self.frames.append(_view(ids.astype("<i8", copy=False)))
        entry.ids_frame = len(self.frames)

    def _attach(self, proto: pb.TensorProto, content: Array) -> None:
        self.frames.append(_view(content))
        proto.frame = len(self.frames)


def _view(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

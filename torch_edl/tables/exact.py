"""What a shard keeps at its own type beside the flat vector: integer, boolean, float64 buffers.

Nobody trains such a value. The worker that changed it assigns it with its push; checkpoints and
outputs have it bit by bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl.errors import UsageError
from torch_edl.wire import codec, tensor_pb2
from torch_edl.wire import pserver_pb2 as pb

Array = npt.NDArray[Any]


class ExactValues:
    """Values by name. Each call is atomic.

    Raises:
        UsageError: a value that an optimizer would have to train.
    """

    def __init__(self, parameters: Sequence[pb.DenseParameter]) -> None:
        self._lock = threading.Lock()
        self._groups = {p.name: p.group for p in parameters}
        self._values = {p.name: codec.from_proto(p.value) for p in parameters}
        for name, group in self._groups.items():
            if group >= 0:
                raise UsageError(
                    f"parameter {name}: {self._values[name].dtype}; servers train float32 only"
                )

    def layout(self) -> list[tuple[str, tuple[int, ...], int, str]]:
        """(name, shape, group, type) of each value: what other workers must agree with."""
        return [
            (name, value.shape, self._groups[name], value.dtype.name)
            for name, value in self._values.items()
        ]

    def decode(self, pushed: Iterable[pb.DenseParameter]) -> dict[str, Array]:
        """What a push assigns, checked.

        Raises:
            UsageError: an unknown name, or another type or shape.
        """
        decoded = {p.name: codec.from_proto(p.value) for p in pushed}
        for name, value in decoded.items():
            here = self._values.get(name)
            if here is None or (here.dtype, here.shape) != (value.dtype, value.shape):
                has = "nothing" if here is None else f"{here.dtype} of shape {here.shape}"
                raise UsageError(
                    f"buffer {name}: {value.dtype} of shape {value.shape}; this server has {has}"
                )
        return decoded

    def assign(self, values: Mapping[str, Array]) -> None:
        """Takes what :meth:`decode` gave."""
        with self._lock:
            self._values.update(values)

    def state(self) -> dict[str, Array]:
        """The values of now."""
        with self._lock:
            return dict(self._values)  # an array is replaced, never changed

    def restore(self, values: Mapping[str, Array]) -> None:
        """Takes its values by name out of ``values``.

        Raises:
            UsageError: one is missing or of another shape.
        """
        with self._lock:
            for name, here in self._values.items():
                value = values.get(name)
                if value is None or value.shape != here.shape:
                    found = "nothing" if value is None else f"the shape {value.shape}"
                    raise UsageError(
                        f"buffer {name}: {found} in what is restored, the model has {here.shape}; "
                        "is it of this model?"
                    )
                self._values[name] = np.array(value, here.dtype)

    def to_proto(self) -> list[pb.DenseParameter]:
        """The values of now as messages."""
        return [
            pb.DenseParameter(name=name, value=codec.to_proto(value), group=self._groups[name])
            for name, value in self.state().items()
        ]


def is_exact(parameter: pb.DenseParameter) -> bool:
    """Whether the value stays out of the flat vector of float32."""
    return parameter.value.dtype != tensor_pb2.DT_FLOAT

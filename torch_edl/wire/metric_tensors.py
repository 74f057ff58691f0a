"""Merge the parts of one tensor of a metric's state. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToDict, ParseDict

from torch_edl.wire import codec, tensor_pb2
from torch_edl.wire import master_pb2 as pb

Array = npt.NDArray[Any]

_REDUCE: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


@dataclass
class MergedTensor:
    """One named tensor of a metric's state, merged from the parts of several tasks."""

    reduction: str
    _value: Array | None = None
    _weight: float = 0.0
    _parts: dict[int, Array] = field(default_factory=dict)
    """Parts by task for the reduction "cat", so that the order of arrival does not matter."""

    def add(self, task_id: int, part: pb.StateTensor, records: int) -> None:
        """Merge the part of one task.

        Raises:
            KeyError: the reduction is unknown.
            ValueError: the shapes cannot be merged.
        """
        value = codec.from_proto(part.value)
        if self.reduction == "cat":
            self._parts[task_id] = np.atleast_1d(value)
            return
        if self.reduction == "mean":
            value = value.astype(np.float64) * records
            self._weight += records
            reduce: Callable[[Array, Array], Array] = np.add
        else:
            reduce = _REDUCE[self.reduction]
        if self._value is None:
            self._value = value
            return
        if self._value.shape != value.shape:
            raise ValueError(f"shapes {self._value.shape} and {value.shape}")
        self._value = reduce(self._value, value)

    @property
    def nbytes(self) -> int:
        """Size of the stored arrays in bytes."""
        arrays = (self._value, *self._parts.values())
        return sum(array.nbytes for array in arrays if array is not None)

    def to_proto(self, name: str) -> pb.StateTensor:
        """Return the merged tensor, for the worker that computes the metric."""
        value = codec.to_proto(self._final())
        return pb.StateTensor(name=name, value=value, reduction=self.reduction)

    def to_state(self) -> dict[str, Any]:
        """Return the tensor as JSON values."""
        return {
            "reduction": self.reduction,
            "weight": self._weight,
            "value": None if self._value is None else _encoded(self._value),
            "parts": [[task, _encoded(part)] for task, part in self._parts.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MergedTensor:
        """Restore the tensor from :meth:`to_state`."""
        return cls(
            state["reduction"],
            None if state["value"] is None else _decoded(state["value"]),
            state["weight"],
            {task: _decoded(part) for task, part in state["parts"]},
        )

    def _final(self) -> Array:
        if self.reduction == "cat":
            return np.concatenate([self._parts[id] for id in sorted(self._parts)], axis=0)
        assert self._value is not None
        if self.reduction == "mean":
            return np.asarray(self._value / self._weight, np.float32)
        return np.asarray(self._value)


def _encoded(array: Array) -> dict[str, Any]:
    return MessageToDict(codec.to_proto(array))


def _decoded(state: Mapping[str, Any]) -> Array:
    return codec.from_proto(ParseDict(dict(state), tensor_pb2.TensorProto())).copy()

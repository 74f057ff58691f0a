"""How the parts of metrics that several processes report become those of the whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToDict, ParseDict

from torch_edl.errors import UsageError
from torch_edl.wire import codec, tensor_pb2
from torch_edl.wire import master_pb2 as pb

Array = npt.NDArray[Any]


@dataclass
class _Tensor:
    """One named tensor of a metric's state, merged so far."""

    reduction: str
    value: Array | None = None
    weight: float = 0.0
    parts: dict[int, Array] = field(default_factory=dict)
    """cat: by task, so that the order of arrival does not matter."""


_REDUCE: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


class MetricStates:
    """The states of all metrics, merged task by task.

    A plain function's metric is a mean over records. A metric object's state is a set of tensors,
    each merged by its reduction: sum, mean (weighted by records), max, min or cat.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._records: dict[str, int] = {}
        self._objects: dict[str, dict[str, _Tensor]] = {}

    def add(self, task_id: int, states: Iterable[pb.MetricState]) -> None:
        """Merges what one task gave.

        Raises:
            UsageError: a reduction that is not known, or shapes that cannot be merged.
        """
        for state in states:
            self._records[state.name] = self._records.get(state.name, 0) + state.records
            if not state.object:
                self._sums[state.name] = self._sums.get(state.name, 0.0) + state.sum
                continue
            tensors = self._objects.setdefault(state.name, {})
            for part in state.tensors:
                tensor = tensors.setdefault(part.name, _Tensor(part.reduction))
                try:
                    _merge(tensor, task_id, part, max(1, state.records))
                except (KeyError, ValueError) as error:
                    raise UsageError(
                        f"metric {state.name}: its state {part.name} with reduction "
                        f"{part.reduction!r} cannot be merged: {error}; use sum, mean, max, min "
                        "or cat, and one shape"
                    ) from error

    @property
    def has_objects(self) -> bool:
        """A worker must compute values from merged states."""
        return bool(self._objects)

    def means(self) -> dict[str, float]:
        """Values of the plain functions."""
        return {
            name: total / self._records[name] if self._records[name] else float("nan")
            for name, total in self._sums.items()
        }

    def objects(self) -> list[pb.MetricState]:
        """Merged states of the metric objects, for the worker that computes their values."""
        merged = []
        for name, tensors in self._objects.items():
            state = pb.MetricState(name=name, object=True, records=self._records[name])
            for tensor_name, tensor in tensors.items():
                state.tensors.add(
                    name=tensor_name,
                    value=codec.to_proto(_final(tensor)),
                    reduction=tensor.reduction,
                )
            merged.append(state)
        return merged

    # ---- a restart of the master ----

    def to_state(self, most_bytes: int) -> dict[str, Any] | None:
        """What was merged so far, as JSON can say it; None if it has more than ``most_bytes``."""
        tensors = [t for of in self._objects.values() for t in of.values()]
        arrays = [a for t in tensors for a in (t.value, *t.parts.values()) if a is not None]
        if sum(array.nbytes for array in arrays) > most_bytes:
            return None
        objects = {
            name: {key: _to_state(tensor) for key, tensor in tensors.items()}
            for name, tensors in self._objects.items()
        }
        return {"sums": self._sums, "records": self._records, "objects": objects}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MetricStates:
        """The inverse of :meth:`to_state`."""
        made = cls()
        made._sums, made._records = dict(state["sums"]), dict(state["records"])
        made._objects = {
            name: {key: _from_state(tensor) for key, tensor in tensors.items()}
            for name, tensors in state["objects"].items()
        }
        return made


def _to_state(tensor: _Tensor) -> dict[str, Any]:
    return {
        "reduction": tensor.reduction,
        "weight": tensor.weight,
        "value": None if tensor.value is None else _encoded(tensor.value),
        "parts": [[task, _encoded(part)] for task, part in tensor.parts.items()],
    }


def _from_state(state: Mapping[str, Any]) -> _Tensor:
    return _Tensor(
        state["reduction"],
        None if state["value"] is None else _decoded(state["value"]),
        state["weight"],
        {task: _decoded(part) for task, part in state["parts"]},
    )


def _encoded(array: Array) -> dict[str, Any]:
    return MessageToDict(codec.to_proto(array))


def _decoded(state: Mapping[str, Any]) -> Array:
    return codec.from_proto(ParseDict(dict(state), tensor_pb2.TensorProto())).copy()


def _merge(tensor: _Tensor, task_id: int, part: pb.StateTensor, records: int) -> None:
    value = codec.from_proto(part.value)
    if tensor.reduction == "cat":
        tensor.parts[task_id] = np.atleast_1d(value)
        return
    if tensor.reduction == "mean":
        value = value.astype(np.float64) * records
        tensor.weight += records
        if tensor.value is not None:
            _same_shape(tensor.value, value)
            value = tensor.value + value
        tensor.value = value
        return
    reduce = _REDUCE[tensor.reduction]
    if tensor.value is None:
        tensor.value = value
    else:
        _same_shape(tensor.value, value)
        tensor.value = reduce(tensor.value, value)


def _same_shape(one: Array, other: Array) -> None:
    if one.shape != other.shape:
        raise ValueError(f"shapes {one.shape} and {other.shape}")


def _final(tensor: _Tensor) -> Array:
    if tensor.reduction == "cat":
        return np.concatenate([tensor.parts[id] for id in sorted(tensor.parts)], axis=0)
    assert tensor.value is not None
    if tensor.reduction == "mean":
        return np.asarray(tensor.value / tensor.weight, np.float32)
    return np.asarray(tensor.value)

"""Merge the metric states that several processes report. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

if TYPE_CHECKING:
    from torch_edl.wire.metric_tensors import MergedTensor


class MetricStates:
    """The states of all metrics, merged task by task.

    The metric of a plain function is a mean over records. The state of a metric object is a set of
    tensors, each merged by its reduction: sum, mean (weighted by records), max, min or cat.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._records: dict[str, int] = {}
        self._objects: dict[str, dict[str, MergedTensor]] = {}

    def add(self, task_id: int, states: Iterable[pb.MetricState]) -> None:
        """Merge the states of one task.

        Raises:
            UsageError: a reduction is unknown, or shapes cannot be merged.
        """
        for state in states:
            self._records[state.name] = self._records.get(state.name, 0) + state.records
            if not state.object:
                self._sums[state.name] = self._sums.get(state.name, 0.0) + state.sum
                continue
            # Imported here, since the master starts without numpy.
            from torch_edl.wire.metric_tensors import MergedTensor

            tensors = self._objects.setdefault(state.name, {})
            for part in state.tensors:
                tensor = tensors.setdefault(part.name, MergedTensor(part.reduction))
                try:
                    tensor.add(task_id, part, max(1, state.records))
                except (KeyError, ValueError) as error:
                    raise UsageError(
                        f"metric {state.name}: its state {part.name} with reduction "
                        f"{part.reduction!r} cannot be merged: {error}; use sum, mean, max, min "
                        "or cat, and one shape"
                    ) from error

    @property
    def has_objects(self) -> bool:
        """True if there are metric objects, whose values a worker must compute."""
        return bool(self._objects)

    def means(self) -> dict[str, float]:
        """Return the values of the plain functions by name."""
        return {
            name: total / self._records[name] if self._records[name] else float("nan")
            for name, total in self._sums.items()
        }

    def objects(self) -> list[pb.MetricState]:
        """Return the merged states of the metric objects, from which a worker computes values."""
        merged = []
        for name, tensors in self._objects.items():
            state = pb.MetricState(name=name, object=True, records=self._records[name])
            for tensor_name, tensor in tensors.items():
                state.tensors.append(tensor.to_proto(tensor_name))
            merged.append(state)
        return merged

    # ---- restart of the master ----

    def to_state(self, most_bytes: int) -> dict[str, Any] | None:
        """Return the merged states as JSON values; None if they exceed ``most_bytes``."""
        tensors = [t for of in self._objects.values() for t in of.values()]
        if sum(tensor.nbytes for tensor in tensors) > most_bytes:
            return None
        objects = {
            name: {key: tensor.to_state() for key, tensor in tensors.items()}
            for name, tensors in self._objects.items()
        }
        return {"sums": self._sums, "records": self._records, "objects": objects}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MetricStates:
        """Restore the states from :meth:`to_state`."""
        made = cls()
        made._sums, made._records = dict(state["sums"]), dict(state["records"])
        if state["objects"]:
            from torch_edl.wire.metric_tensors import MergedTensor

            made._objects = {
                name: {key: MergedTensor.from_state(tensor) for key, tensor in tensors.items()}
                for name, tensors in state["objects"].items()
            }
        return made

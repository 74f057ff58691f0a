"""The result of one process in an evaluation or a prediction.

Metrics are sent as states that merge exactly. The values of a function are averaged by the number
of records. A metric object (a ``Metric`` of torch_edl, torchmetrics or Keras) is updated with every
minibatch; its states are merged over all workers, and one worker computes the final value. The
predictions of a task are written to one file, which has the number of the task in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_edl.errors import ContractError, UsageError
from torch_edl.interfaces import Batch
from torch_edl.training.contract.argument_order import labels_first
from torch_edl.training.contract.functions import UserMetric
from torch_edl.wire import codec
from torch_edl.wire import master_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

LOSS = "loss"
INDEXES = "indexes"
"""Parameter of the ``update`` of a metric that ranks the records of each group (retrieval metrics
of torchmetrics), and key of labels: the group of each record."""
SINGLE_OUTPUT = "prediction"

Array = npt.NDArray[Any]


class Values(Protocol):
    """Conversion of a framework's tensors and metrics to numbers and arrays.

    Each backend has one, so that this package imports no framework.
    """

    def mean(self, value: Any) -> float:
        """Return the mean of a number or a tensor."""
        ...

    def array(self, value: Any) -> Any:
        """Return a tensor as an array; return any other value unchanged."""
        ...

    def describe(self, value: Any) -> str:
        """Return the shape and dtype of a tensor, or the type of any other value, for messages."""
        ...

    def update_of(self, metric: Any) -> Callable[..., Any] | None:
        """Return the update method of a metric object; None if the metric is a function."""
        ...

    def states(self, name: str, metric: Any) -> Iterable[tuple[str, Array, str]]:
        """Return the name, value and reduction (``sum``, ``mean``, ``max``, ``min``, ``cat``) of
        each state.

        Raises:
            ContractError: the states of a metric cannot be merged.
        """
        ...

    def compute(self, name: str, metric: Any, merged: Mapping[str, Array]) -> float:
        """Load merged states into a new metric, and return its value.

        Raises:
            ContractError: the value is not a single number.
        """
        ...


class TaskMetrics:
    """The metrics of one evaluation task, or of one process in an evaluation.

    Args:
        loss: function of labels and predictions; :func:`labels_first` determines their order.
        metrics: functions such as ``loss``, or new metric objects, by name.
    """

    def __init__(
        self, loss: Callable[[Any, Any], Any], metrics: Mapping[str, UserMetric], values: Values
    ) -> None:
        self._values = values
        self._outputs = {name: metric.output for name, metric in metrics.items()}
        made = {name: metric.made for name, metric in metrics.items()}
        updates = {name: values.update_of(metric) for name, metric in made.items()}
        self._objects = {n: made[n] for n, update in updates.items() if update is not None}
        plain = {name: m for name, m in made.items() if name not in self._objects}
        self._functions = {n: labels_first(m) for n, m in {LOSS: loss, **plain}.items()}
        self._updates = {n: labels_first(u) for n, u in updates.items() if u is not None}
        self._grouped = {n for n, u in self._updates.items() if INDEXES in u.parameters}
        self._means: dict[str, list[float]] = {name: [0.0, 0] for name in self._functions}

    def update(self, batch: Batch, predictions: Any) -> None:
        """Add the predictions for a batch to all metrics."""
        for name, function in self._functions.items():
            total = self._means[name]
            value = function(self._labels(name, batch.labels), self._of(name, predictions))
            total[0] += self._mean(name, value) * batch.size
            total[1] += batch.size
        for name, update in self._updates.items():
            labels, given = self._labels(name, batch.labels), self._of(name, predictions)
            if name in self._grouped:
                update(labels, given, **{INDEXES: batch.labels[INDEXES]})
            else:
                update(labels, given)

    def _mean(self, name: str, value: Any) -> float:
        try:
            return self._values.mean(value)
        except (TypeError, ValueError, RuntimeError):
            what = name if name == LOSS else f"metric {name!r}"
            raise ContractError(
                f"{what} returned {self._values.describe(value)}; expected a number, or a tensor "
                "of numbers whose mean is taken"
            ) from None

    def _labels(self, name: str, labels: Any) -> Any:
        """Return the part of the labels that a metric receives: those with the name of its output,
        or all."""
        output = self._outputs.get(name, "")
        if name not in self._grouped:
            is_named = output and isinstance(labels, Mapping) and output in labels
            return labels[output] if is_named else labels
        rest = dict(labels) if isinstance(labels, Mapping) else {}
        if rest.pop(INDEXES, None) is None or not (output in rest or len(rest) == 1):
            raise ContractError(
                f"metric {name!r} ranks the records of each group, and the labels are "
                f"{self._values.describe(labels)}; let feed return a dict of the labels and "
                f"{INDEXES!r}, an integer per record: {{'click': ..., {INDEXES!r}: user}}"
            )
        return rest[output] if output in rest else next(iter(rest.values()))

    def _of(self, name: str, predictions: Any) -> Any:
        """Return the part of the predictions that a metric receives."""
        output = self._outputs.get(name, "")
        if not output:
            return predictions
        if not isinstance(predictions, Mapping) or output not in predictions:
            raise ContractError(
                f"eval_metrics_fn has metrics of the output {output!r}, and the model returned "
                f"{self._values.describe(predictions)}; return a dict with {output!r}"
            )
        return predictions[output]

    def states(self) -> list[pb.MetricState]:
        """Return the states of all metrics, to be merged with those of other tasks."""
        states = [
            pb.MetricState(name=name, sum=total, records=int(records))
            for name, (total, records) in self._means.items()
        ]
        for name, metric in self._objects.items():
            # A state that is merged as a mean is weighted by its number of records.
            state = pb.MetricState(name=name, object=True, records=int(self._means[LOSS][1]))
            for key, value, reduction in self._values.states(name, metric):
                state.tensors.add(name=key, value=codec.to_proto(value), reduction=reduction)
            states.append(state)
        return states


def summarize(
    metrics: Mapping[str, UserMetric], states: Iterable[pb.MetricState], values: Values
) -> dict[str, float]:
    """Return the values of metric objects by name.

    Args:
        metrics: new metric objects by name.
        states: their merged states.
    """
    merged = {s.name: {t.name: codec.from_proto(t.value) for t in s.tensors} for s in states}
    return {name: values.compute(name, metrics[name].made, each) for name, each in merged.items()}


def kept_columns(records: Any, names: Sequence[str], shard: str) -> pa.Table:
    """Return the input columns that are written together with the predictions.

    Args:
        records: records of a task.
        names: names of the columns.

    Raises:
        UsageError: the records are not a table, or a column is missing.
    """
    option = f"--keep {','.join(names)}"
    if isinstance(records, list):
        raise UsageError(f"{option}: the records of {shard} are bytes, without columns")
    for name in names:
        if name not in records.column_names:
            raise UsageError(
                f"{option}: no column {name!r} in {shard}; it has {', '.join(records.column_names)}"
            )
    table = records.select(names)
    for place, field in enumerate(table.schema):
        if hasattr(field.type, "value_type") and hasattr(field.type, "index_type"):
            decoded = field.with_type(field.type.value_type)  # CSV files take no dictionaries
            table = table.set_column(place, decoded, table.column(place).cast(decoded.type))
    return table


class TaskPredictions:
    """The outputs of one prediction task, in the order of its records.

    Args:
        processor: the user's ``prediction_outputs_processor``: a function of the outputs of a
            minibatch, or an object with ``process(outputs, worker_id)``. A return value other than
            None replaces the outputs.
        kept: columns of the task's records, which are written before the outputs; None: none.
    """

    def __init__(
        self, processor: Any | None, worker_id: int, values: Values, kept: pa.Table | None = None
    ) -> None:
        self._values = values
        self._kept = kept
        self._processor = processor
        self._worker_id = worker_id
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {}

    def add(self, outputs: Any) -> None:
        """Add the outputs for a minibatch."""
        if self._processor is not None:
            process = getattr(self._processor, "process", None)
            made = process(outputs, self._worker_id) if process else self._processor(outputs)
            outputs = outputs if made is None else made
        for name, value in self._named(outputs).items():
            self._parts.setdefault(name, []).append(value)

    def write(self, directory: str, task_id: int) -> int:
        """Write the part of the task and return the number of rows; see
        :func:`~torch_edl.data.predictions.write_part` for errors."""
        # Imported here, since it imports pyarrow.
        from torch_edl.data.predictions import write_part

        outputs = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        write_part(Path(directory), task_id, outputs, self._kept)
        return len(next(iter(outputs.values()))) if outputs else 0

    def _named(self, outputs: Any) -> dict[str, Array]:
        if isinstance(outputs, Mapping):
            return {str(k): self._array(v) for k, v in outputs.items()}
        if isinstance(outputs, tuple | list):
            return {f"{SINGLE_OUTPUT}_{i}": self._array(v) for i, v in enumerate(outputs)}
        return {SINGLE_OUTPUT: self._array(outputs)}

    def _array(self, value: Any) -> Array:
        found = self._values.array(value)
        if not isinstance(found, np.ndarray) or found.ndim == 0:
            raise ContractError(
                f"the model's prediction is {self._values.describe(value)}; expected a tensor with "
                "a row for each record, or a tuple or dict of such"
            )
        return found

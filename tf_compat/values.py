"""Converts tensors and metrics of TensorFlow to numbers and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from torch_edl.errors import ContractError

Array = npt.NDArray[Any]

# Metrics whose state is a sum over records, so that the states of workers can be added.
_SUMS = (
    keras.metrics.Mean,
    keras.metrics.Sum,
    keras.metrics.AUC,
    keras.metrics.Precision,
    keras.metrics.Recall,
    keras.metrics.TruePositives,
    keras.metrics.TrueNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.FalseNegatives,
    keras.metrics.PrecisionAtRecall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
    keras.metrics.IoU,
    keras.metrics.FBetaScore,
    keras.metrics.RootMeanSquaredError,
)


class TensorFlowValues:
    """Implements :class:`~torch_edl.training.task_results.Values`."""

    def mean(self, value: Any) -> float:
        return float(np.asarray(value, np.float64).mean())

    def array(self, value: Any) -> Any:
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            return value
        found = np.asarray(value)
        return found.astype(np.float32) if found.dtype.name == "bfloat16" else found

    def describe(self, value: Any) -> str:
        return describe(value)

    def update_of(self, metric: Any) -> Callable[..., Any] | None:
        name = "update_state" if isinstance(metric, keras.metrics.Metric) else "update"
        found: Callable[..., Any] | None = getattr(metric, name, None)
        return found

    def states(self, name: str, metric: Any) -> Iterable[tuple[str, Array, str]]:
        if not isinstance(metric, keras.metrics.Metric):
            for key, value in metric.state().items():
                yield key, self.array(value), metric.reductions[key]
            return
        if not isinstance(metric, _SUMS):
            raise ContractError(
                f"metric {name!r}: the states of {type(metric).__name__} are no sums, so those of "
                "several workers cannot be merged; use a metric of keras.metrics that counts or "
                "averages, or an object with update, state, merge, compute and reductions"
            )
        for number, variable in enumerate(metric.variables):
            yield str(number), np.asarray(variable), "sum"

    def compute(self, name: str, metric: Any, merged: Mapping[str, Array]) -> float:
        if isinstance(metric, keras.metrics.Metric):
            for number, variable in enumerate(metric.variables):
                variable.assign(merged[str(number)])
            computed = np.asarray(metric.result())
        else:
            metric.merge(merged)
            computed = np.asarray(metric.compute())
        if computed.size != 1:
            raise ContractError(
                f"metric {name!r}: its result has the shape {computed.shape}; a metric is one "
                "number: average them, or give each a name of its own"
            )
        return float(computed.reshape(()))


def describe(value: Any) -> str:
    """Return shape and dtype of a tensor, or the type of any other value, for messages."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = getattr(value.dtype, "name", value.dtype)
        return f"{tuple(value.shape)} {dtype}"
    if isinstance(value, tuple | list):
        return f"({', '.join(describe(v) for v in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {describe(v)}' for name, v in value.items())}}}"
    return type(value).__name__

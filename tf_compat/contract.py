"""The contract of a Keras model file: its functions, and what they return as numbers and arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tf_compat.datasets import of_dataset
from tf_compat.signatures import SIGNATURES
from torch_edl.errors import ContractError
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.contract.loading import load_functions
from torch_edl.training.diagnostics import describe_parts

_DATASET_NAMES = ("dataset", "ds")


@dataclass(frozen=True, kw_only=True)
class KerasContract(UserFunctions):
    """The functions of a model file, each under the first of its accepted names."""

    optimizer: Callable[[], Any]

    signatures = SIGNATURES

    def make_model(self) -> Any:
        """Call the user's ``model`` and return the model.

        Raises:
            ContractError: the function raised, or returned no model, or a model without variables.
        """
        name = self.named("model")
        model = self._call(f"{name}()", self.model)
        if not isinstance(model, keras.Model):
            raise self._wrong("model", model, "a keras.Model")
        if not model.built or not model.variables:
            maker = f"{type(model).__name__}()"
            raise ContractError(
                f"{self.path}: {name}() returned a model without variables, since Keras makes them "
                "with the first batch, and the job must know them before; call the model once, on "
                f"zeros of the shape of a batch:\n    def model():\n        net = {maker}\n"
                "        net(tf.zeros((1, 28, 28)))\n        return net"
            )
        return model

    def make_optimizer(self) -> Any:
        """Call the user's ``optimizer`` and return the optimizer.

        Raises:
            ContractError: the function raised, or returned no optimizer.
        """
        made = self._call("optimizer()", self.optimizer)
        if not isinstance(made, keras.optimizers.Optimizer):
            raise self._wrong("optimizer", made, "an optimizer of keras.optimizers")
        return made

    def check_metric(self, what: str, metric: Any) -> None:
        """Accept metrics of Keras, which have ``update_state``, and those of any framework."""
        if not isinstance(metric, keras.metrics.Metric):
            super().check_metric(what, metric)


def load_contract(path: str, args: Sequence[str] = ()) -> KerasContract:
    """Execute a model file, and return the functions of the contract in it.

    Args:
        args: arguments for ``sys.argv[1:]`` of the file.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    found = load_functions(path, args, KerasContract.signatures, _is_model)
    if found["names"]["feed"] == "dataset_fn" or _takes_dataset(found["feed"]):
        found["feed"] = of_dataset(found["feed"])
    return KerasContract(**found)


def _takes_dataset(feed: Callable[..., Any]) -> bool:
    """Return True for a ``feed`` as in ElasticDL, ``feed(dataset, mode, metadata)``.

    The name of its first parameter decides.
    """
    try:
        first = next(iter(inspect.signature(feed).parameters), "")
    except (TypeError, ValueError):  # a builtin may have no signature
        return False
    return first in _DATASET_NAMES


def _is_model(value: Any) -> bool:
    return isinstance(value, keras.Model)


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
    return describe_parts(value, describe)

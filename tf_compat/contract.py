"""The contract of a Keras model file: its functions and their return values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tf_compat.datasets import of_dataset
from tf_compat.signatures import SIGNATURES
from torch_edl.errors import ContractError
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.contract.loading import load_functions

_DATASET_NAMES = ("dataset", "ds")


@dataclass(frozen=True, kw_only=True)
class Contract(UserFunctions):
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


def load_contract(path: str, args: Sequence[str] = ()) -> Contract:
    """Execute a model file, and return the functions of the contract in it.

    Args:
        args: arguments for ``sys.argv[1:]`` of the file.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    found = load_functions(path, args, Contract.signatures, _is_model)
    if found["names"]["feed"] == "dataset_fn" or _takes_dataset(found["feed"]):
        found["feed"] = of_dataset(found["feed"])
    return Contract(**found)


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

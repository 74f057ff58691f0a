"""The contract of a model file of Keras: its functions, and what they must give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tf_compat.datasets import of_dataset
from torch_edl.errors import ContractError
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.contract.loading import load_functions
from torch_edl.training.contract.signatures import SIGNATURES

_DATASET_NAMES = ("dataset", "ds")


@dataclass(frozen=True, kw_only=True)
class Contract(UserFunctions):
    """The functions of a model file, under the first of their accepted names."""

    optimizer: Callable[[], Any]

    signatures = SIGNATURES["tensorflow"]

    def make_model(self) -> Any:
        """Calls the user's ``model``.

        Raises:
            ContractError: it raised, returned no model, or one that has no variables yet.
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
        """Calls the user's ``optimizer``.

        Raises:
            ContractError: it raised, or returned no optimizer.
        """
        made = self._call("optimizer()", self.optimizer)
        if not isinstance(made, keras.optimizers.Optimizer):
            raise self._wrong("optimizer", made, "an optimizer of keras.optimizers")
        return made

    def check_metric(self, what: str, metric: Any) -> None:
        """As for any framework; metrics of Keras are updated by ``update_state``."""
        if not isinstance(metric, keras.metrics.Metric):
            super().check_metric(what, metric)


def load_contract(path: str, args: Sequence[str] = ()) -> Contract:
    """Executes a model file and finds the functions of the contract in it.

    Args:
        args: becomes ``sys.argv[1:]`` of the file.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    found = load_functions(path, args, Contract.signatures, _is_model)
    if found["names"]["feed"] == "dataset_fn" or _takes_dataset(found["feed"]):
        found["feed"] = of_dataset(found["feed"])
    return Contract(**found)


def _takes_dataset(feed: Callable[..., Any]) -> bool:
    """Whether a ``feed`` is written as in ElasticDL, ``feed(dataset, mode, metadata)``: the name of
    its first parameter tells."""
    try:
        first = next(iter(inspect.signature(feed).parameters), "")
    except (TypeError, ValueError):  # a builtin may have no signature
        return False
    return first in _DATASET_NAMES


def _is_model(value: Any) -> bool:
    return isinstance(value, keras.Model)

"""The contract of a model file of Keras: its functions, and what they must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tf_compat.datasets import of_dataset
from torch_edl.contract.functions import UserFunctions
from torch_edl.contract.loading import load_functions
from torch_edl.contract.signatures import SIGNATURES
from torch_edl.errors import ContractError


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
        model = self._call("model()", self.model)
        if not isinstance(model, keras.Model):
            raise self._wrong("model", model, "a keras.Model")
        if not model.built or not model.variables:
            raise ContractError(
                f"{self.path}: model() returned {type(model).__name__} without variables, since "
                "Keras makes them with the first batch, and the job must know them before; call "
                "the model once in model(), on zeros of the shape of a batch: "
                "net(tf.zeros((1, 28, 28)))"
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
    found, names = load_functions(path, args, Contract.signatures, _is_model)
    if names["feed"] == "dataset_fn":
        found["feed"] = of_dataset(found["feed"])
    return Contract(**found)


def _is_model(value: Any) -> bool:
    return isinstance(value, keras.Model)

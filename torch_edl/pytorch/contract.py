"""The contract of a model file of torch: its functions and their return values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_edl.errors import ContractError
from torch_edl.pytorch.signatures import SIGNATURES
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.contract.loading import load_functions


@dataclass(frozen=True, kw_only=True)
class Contract(UserFunctions):
    """The functions of a model file of torch."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    """Function from the parameters of the model to an optimizer."""
    scheduler: Callable[[torch.optim.Optimizer], Any] | None
    """Function from the optimizer to a learning rate scheduler; None: not defined."""

    signatures = SIGNATURES

    def make_model(self) -> nn.Module:
        """Call ``model`` and return its module.

        Raises:
            ContractError: the function raised, or did not return a module.
        """
        module = self._call(f"{self.named('model')}()", self.model)
        if not isinstance(module, nn.Module):
            raise self._wrong("model", module, "a torch.nn.Module")
        return module

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """Call ``optimizer`` with the parameters of ``module``, and return its optimizer.

        Raises:
            ContractError: the function raised, did not return an optimizer, or returned an
                optimizer whose ``step`` needs a closure.
        """
        made = self._call(
            "optimizer(model.parameters())", lambda: self.optimizer(module.parameters())
        )
        if not isinstance(made, torch.optim.Optimizer):
            raise self._wrong("optimizer", made, "a torch.optim.Optimizer")
        closure = inspect.signature(type(made).step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ContractError(
                f"{self.path}: optimizer returned {type(made).__name__}, whose step needs a "
                "closure, and the gradients of a minibatch of a model file are computed once; "
                "return another optimizer, or write a training script, for a single process"
            )
        return made

    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Call ``scheduler`` and return its scheduler; None if the file does not define it.

        Raises:
            ContractError: the function raised, or did not return a scheduler.
        """
        if self.scheduler is None:
            return None
        made = self._call("scheduler(optimizer)", lambda: self.scheduler(optimizer))  # type: ignore[misc]
        if not hasattr(made, "step"):
            raise self._wrong("scheduler", made, "a scheduler of torch.optim.lr_scheduler")
        return made


def load_contract(path: str, args: Sequence[str] = ()) -> Contract:
    """Execute a model file and return its functions.

    Args:
        args: ``sys.argv[1:]`` of the file.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    signatures = Contract.signatures
    found = load_functions(path, args, signatures, lambda value: isinstance(value, nn.Module))
    return Contract(**found)

"""The contract of a model file of torch: its functions, and what they must give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_edl.errors import ContractError
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.contract.loading import load_functions
from torch_edl.training.contract.signatures import SIGNATURES


@dataclass(frozen=True, kw_only=True)
class Contract(UserFunctions):
    """The functions of a model file, under the first of their accepted names."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None

    signatures = SIGNATURES["torch"]

    def make_model(self) -> nn.Module:
        """Calls the user's ``model``.

        Raises:
            ContractError: it raised, or returned no module.
        """
        module = self._call(f"{self.named('model')}()", self.model)
        if not isinstance(module, nn.Module):
            raise self._wrong("model", module, "a torch.nn.Module")
        return module

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """Calls the user's ``optimizer`` with the parameters of ``module``.

        Raises:
            ContractError: it raised, or returned no optimizer, or one that needs a closure.
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
        """Calls the user's ``scheduler``, if there is one."""
        if self.scheduler is None:
            return None
        made = self._call("scheduler(optimizer)", lambda: self.scheduler(optimizer))  # type: ignore[misc]
        if not hasattr(made, "step"):
            raise self._wrong("scheduler", made, "a scheduler of torch.optim.lr_scheduler")
        return made


def load_contract(path: str, args: Sequence[str] = ()) -> Contract:
    """Executes a model file and finds the functions of the contract in it.

    Args:
        args: becomes ``sys.argv[1:]`` of the file.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    signatures = Contract.signatures
    found = load_functions(path, args, signatures, lambda value: isinstance(value, nn.Module))
    return Contract(**found)

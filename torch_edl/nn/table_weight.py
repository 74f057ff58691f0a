"""The empty parameter that stands for a table in the groups of an optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_edl.errors import UsageError


class TableWeight(nn.Parameter):
    """The parameter (0, dim) of a table, which only lookups differentiate.

    What else computes with it has no effect on the rows: a penalty would be 0, in silence.

    Raises (``backward``, ``torch.autograd.grad``):
        UsageError: a gradient reaches the parameter other than by a lookup, or is asked for.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.autograd.grad:
            raise UsageError(
                "torch.autograd.grad(): the inputs have the weight of a table of torch_edl.nn, "
                "whose rows get their gradients by backward() alone; leave it out of the inputs, "
                "or call backward()"
            )
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **kwargs or {})
            for each in made if isinstance(made, list | tuple) else [made]:
                if isinstance(each, torch.Tensor) and each.grad_fn is not None:
                    each.register_hook(_refuse)  # type: ignore[no-untyped-call]
        return made


def _refuse(_: torch.Tensor) -> None:
    raise UsageError(
        "the loss depends on the weight of a table of torch_edl.nn (a large torch.nn.Embedding on "
        "parameter servers is one, too); the weight is empty, so that a penalty adds nothing: "
        "penalize the rows of the batch, embedding(ids).square().sum(), or give the optimizer a "
        "weight_decay"
    )

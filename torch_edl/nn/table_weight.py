"""The empty parameter that represents a table in the parameter groups of an optimizer.

The class relies on internals of torch, as :mod:`torch_edl.pytorch.torch_internals` does, which
imports this package. ``__torch_function__`` receives each operation on the parameter ("Extending
torch" in torch's documentation; github.com/pytorch/pytorch/issues/65018). Pickle restores a plain
``Parameter`` (``torch._utils._rebuild_parameter``), whose class is set again by
:meth:`torch_edl.nn.embedding.Table.__setstate__`. Tests in ``tests/unit/nn/test_embedding.py``:
``test_a_penalty_on_the_weight_of_a_table_is_refused``, also for
copies, and ``test_gradients_of_a_table_cannot_be_had_without_backward``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_edl.errors import UsageError


class TableWeight(nn.Parameter):
    """The empty parameter (0, dim) of a table, which only lookups may use.

    Other computations with the parameter do not reach the rows: a penalty would silently be 0.

    Raises (in ``backward`` and ``torch.autograd.grad``):
        UsageError: the parameter is used by another operation than a lookup, or its gradient is
            requested.
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

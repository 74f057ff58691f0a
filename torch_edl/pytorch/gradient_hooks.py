"""Hooks on the gradients of parameters and on the steps of optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_edl.errors import UsageError
from torch_edl.pytorch.torch_internals import change_count


def weak_hook(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method as a hook that does nothing after the object of the method was deleted.

    The garbage collector cannot follow references held by tensor hooks, so the object and the model
    would otherwise never be released.
    """
    weak = weakref.WeakMethod(method)

    def hook(*args: Any) -> None:
        if (bound := weak()) is not None:
            bound(*args)

    return hook


def on_every_gradient(model: nn.Module, method: Callable[[], None]) -> None:
    """Call a method in each backward whenever a trained parameter has received its gradient."""
    hook = weak_hook(method)
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _: hook())  # type: ignore[no-untyped-call]


def on_step(
    optimizer: Optimizer,
    method: Callable[[Optimizer], None],
    is_free: Callable[[], bool] = lambda: False,
) -> RemovableHandle:
    """Call a method before each step of an optimizer, when the gradients are complete.

    If the step has a closure, the closure runs before the method, and the step receives its loss.
    LBFGS runs its closure several times; optimizers that are not from torch may do so, too.

    Args:
        is_free: returns True if an optimizer may run its closure several times now, because no
            other process needs the gradients. The method is then called before the closure.

    Raises (in the step):
        UsageError: the optimizer may run its closure several times, and ``is_free`` is False.
    """

    def hook(stepping: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("self", "closure"), args, strict=False)) | kwargs
        closure, kind = given.get("closure"), type(stepping)
        is_ours = kind.__module__.partition(".")[0] in ("torch", "torch_edl")
        repeats = isinstance(stepping, torch.optim.LBFGS) or not is_ours
        if closure is None or (repeats and is_free()):
            method(stepping)
            return None
        if repeats:
            raise UsageError(
                f"{kind.__name__}.step(closure): it may compute the gradients of a batch several "
                "times, which works in a single process without accumulated batches only; call "
                "backward() first, and step() without a closure, or use another optimizer"
            )
        with torch.enable_grad():
            loss = closure()
        method(stepping)
        return (stepping,), {"closure": lambda: loss}

    return optimizer.register_step_pre_hook(hook)


def are_finite(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all elements are finite, as a tensor of one bool; dense and sparse gradients
    are accepted. The sums of half precision are computed in float32, since they may overflow."""
    dense = [each.coalesce().values() if each.is_sparse else each for each in tensors]
    if not dense:
        return torch.tensor(True)
    sums = (each.sum(dtype=torch.float32 if each.dtype is torch.half else None) for each in dense)
    return torch.stack([torch.isfinite(each).to(dense[0].device) for each in sums]).all()


class ManualAccumulation:
    """Hooks that reject a backward which adds to gradients that no optimizer has applied.

    Each batch counts as an update. Gradients that wait for a later step would be lost if a ring
    breaks, and a process that joins would not have them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._untaken: dict[int, tuple[torch.Tensor, int]] = {}
        self._watches = False

    def forbid(self) -> None:
        """Make the next backward raise UsageError if it adds to the current gradients."""
        self._untaken = {
            id(p): (p.grad, change_count(p.grad)) for p in self._parameters if p.grad is not None
        }
        self.watch()

    def watch(self) -> None:
        """Register the hooks, before any other hook that changes gradients."""
        if not self._watches:
            self._watches = True
            for p in self._parameters:
                p.register_post_accumulate_grad_hook(weak_hook(self._check))  # type: ignore[no-untyped-call]

    def _check(self, parameter: torch.Tensor) -> None:
        if not self._untaken:
            return
        gradient, version = self._untaken.get(id(parameter), (None, 0))
        self._untaken = {}
        # Autograd added to the gradient in place, without zero_grad in between.
        if (
            gradient is not None
            and parameter.grad is gradient
            and change_count(gradient) == version + 1
        ):
            raise UsageError(
                "backward() was called again and no optimizer took the gradients of the batch "
                "before: gradients gathered by hand are lost when a ring changes, and each batch "
                "counts as an update; use job.loader(..., accumulate=N) or global_batch_size= (on "
                "parameter servers a larger batch_size) and step after each batch"
            )

"""Optimizers without torch's compiler, as long as nobody compiles.

``torch.optim`` marks some methods as not to be compiled, and imports ``torch._dynamo`` for that
when such a method is first called: 1.5 to 1.9 s of CPU in the start of each worker, for a mark that
changes nothing while no compiler is loaded. After :func:`defer_dynamo` these methods run as they
are until something else (``torch.compile``) imports the compiler, and go torch's own way from then
on.

What is replaced is private to torch. A method that does not look as expected is left alone: the
worker then starts as slowly as before, and nothing else changes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

_DYNAMO = "torch._dynamo"
_DISABLED = "__dynamo_disable"
"""Where ``torch._compile._disable_dynamo`` keeps, at a function, what it calls instead of it."""
_STEP = (
    *("torch._dynamo", "cast", "Optimizer", "is_grad_enabled", "set_grad_enabled"),
    *("defaults", "_dynamo", "graph_break"),
)
"""All names in the wrapper around each ``step``: sets the mode of gradients, and marks both ends of
the step for the compiler."""


def defer_dynamo() -> None:
    """Lets optimizers be made and used without ``torch._dynamo``. To be called before the first one
    is made; calling it again does nothing."""
    if _DYNAMO in sys.modules:
        return
    for method in vars(Optimizer).values():
        if getattr(method, "__globals__", {}).get("__name__") == "torch._compile":
            _run_plainly(method)
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            step = vars(kind).get("step")
            code = getattr(step, "__code__", None)
            if code is not None and code.co_names == _STEP and hasattr(step, "__wrapped__"):
                kind.step = _plain_step(step)  # type: ignore[method-assign]


def _run_plainly(method: Any) -> None:
    function = getattr(method, "__wrapped__", None)
    if function is None or hasattr(function, _DISABLED):
        return

    def plain(*args: Any, **kwargs: Any) -> Any:
        if _DYNAMO not in sys.modules:
            return function(*args, **kwargs)
        if getattr(function, _DISABLED, None) is plain:
            delattr(function, _DISABLED)
        return method(*args, **kwargs)

    setattr(function, _DISABLED, plain)


def _plain_step(step: Any) -> Callable[..., Any]:
    @functools.wraps(step)
    def plain(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _DYNAMO in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step.__wrapped__(self, *args, **kwargs)

    return plain

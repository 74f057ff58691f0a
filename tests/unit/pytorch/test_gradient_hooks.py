"""Gradients that a script accumulates by hand, and hooks that keep nothing alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.pytorch.gradient_hooks import ManualAccumulation, weak_hook


def backward(model: nn.Module) -> None:
    model(torch.ones(1, 2)).sum().backward()


def test_adding_to_gradients_that_no_optimizer_took_is_found_once() -> None:
    model = nn.Linear(2, 1)
    accumulation = ManualAccumulation(model)
    backward(model)
    backward(model)
    accumulation.forbid()
    with pytest.raises(UsageError, match="accumulate=N"):
        backward(model)
    backward(model)


@pytest.mark.parametrize(
    "clear",
    [
        lambda model: model.zero_grad(),
        lambda model: model.zero_grad(set_to_none=False),
        lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    ],
)
def test_gradients_that_were_changed_may_be_added_to(clear: Callable[[nn.Module], None]) -> None:
    model = nn.Linear(2, 1)
    accumulation = ManualAccumulation(model)
    backward(model)
    accumulation.forbid()
    clear(model)
    backward(model)


def test_a_hook_keeps_neither_its_object_nor_the_model() -> None:
    class Watcher:
        def __init__(self, model: nn.Linear) -> None:
            self.model = model
            self.seen = 0
            model.weight.register_post_accumulate_grad_hook(weak_hook(self.see))  # type: ignore[no-untyped-call]

        def see(self, _: torch.Tensor) -> None:
            self.seen += 1

    model = nn.Linear(2, 1)
    watcher = Watcher(model)
    backward(model)
    assert watcher.seen == 1
    gone = weakref.ref(watcher)
    del watcher
    gc.collect()
    assert gone() is None
    backward(model)

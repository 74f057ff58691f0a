"""Learning rates of a model on servers: the versions of the servers drive the user's scheduler."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch


class ServerSchedule:
    """Takes over a scheduler: its ``step`` does nothing any more when the body calls it.

    Args:
        scheduler: of ``torch.optim.lr_scheduler``; None: the rates of the servers stay.
        steps: minibatches in an update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any | None, steps: int) -> None:
        self._optimizer = optimizer
        self._steps = steps
        self._scheduler = scheduler
        self._made = 0
        if scheduler is None:
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        self._initial = copy.deepcopy((rates, scheduler.state_dict()))
        self._step = scheduler.step
        scheduler.step = lambda *_, **__: None

    def rewind(self) -> None:
        """Servers that were restored are at an earlier version than those before them."""
        if self._scheduler is None:
            return
        rates, state = copy.deepcopy(self._initial)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._scheduler.load_state_dict(state)
        self._made = 0

    def learning_rates(self, version: int) -> list[float]:
        """Of each parameter group, for the update after ``version``; empty: they stay."""
        if self._scheduler is None:
            return []
        with warnings.catch_warnings():
            # The optimizer steps on the servers; torch cannot see that.
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            while self._made < version * self._steps:
                self._step()
                self._made += 1
        return [float(group["lr"]) for group in self._optimizer.param_groups]

"""Learning rates of a model on servers. The version of the servers drives the user's scheduler;
without a scheduler, each push has the rates that the optimizer has at its step."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from torch_edl.errors import UsageError
from torch_edl.optim import hyperparameters
from torch_edl.pytorch.torch_internals import take_step


class ServerSchedule:
    """Takes control of a scheduler: its ``step`` does nothing if the body calls it.

    Args:
        scheduler: a scheduler of ``torch.optim.lr_scheduler``; None to use the rates that the
            optimizer has at each step, which a script may change.
        steps: number of minibatches in an update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any | None, steps: int) -> None:
        self._optimizer = optimizer
        self._steps = steps
        self._scheduler = scheduler
        self._made = 0
        self._began = self._at_step = hyperparameters(optimizer)
        if scheduler is None:
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        self._initial = copy.deepcopy((rates, scheduler.state_dict()))
        self._step = take_step(scheduler)

    def rewind(self) -> None:
        """Reset the scheduler, because restored servers may have an earlier version."""
        if self._scheduler is None:
            return
        rates, state = copy.deepcopy(self._initial)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._scheduler.load_state_dict(state)
        self._made = 0

    def note_step(self) -> None:
        """Record the hyperparameters with which the user's optimizer steps now.

        Raises:
            UsageError: a hyperparameter other than the learning rate has changed.
        """
        self._at_step = hyperparameters(self._optimizer)
        if len(self._at_step) != len(self._began):
            raise UsageError(
                "optimizer: a group of parameters was added after the beginning; parameter "
                "servers have those of the beginning"
            )
        for before, now in zip(self._began, self._at_step, strict=True):
            for name, value in now.items():
                if value != before[name] and name != "lr":
                    raise UsageError(
                        f"optimizer: {type(self._optimizer).__name__} began with {name} "
                        f"{before[name]:g} and has {value:g} now; parameter servers follow changes "
                        "of the learning rate alone: give OneCycleLR and CyclicLR "
                        "cycle_momentum=False, or use --strategy allreduce"
                    )

    def learning_rates(self, version: int) -> list[float]:
        """Return the rate of each group for the update after ``version``; empty if unchanged."""
        if self._scheduler is None:
            rates = [group["lr"] for group in self._at_step]
            return [] if rates == [group["lr"] for group in self._began] else rates
        with warnings.catch_warnings():
            # The optimizer steps on the servers; torch cannot see that.
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            while self._made < version * self._steps:
                self._step()
                self._made += 1
        return [float(group["lr"]) for group in self._optimizer.param_groups]

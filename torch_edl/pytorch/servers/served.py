"""A torch model whose parameters are on servers, and its learning rates. The version of the servers
drives the user's scheduler; without one, each push has the rates that the optimizer has at its
step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from torch_edl.engine.servers.served import Array
from torch_edl.errors import UsageError
from torch_edl.optim import group_of, hyperparameters, optimizer_config
from torch_edl.ps_client.client import PsClient
from torch_edl.ps_client.partition import DenseGradient, DenseSegment, Floats
from torch_edl.pytorch.gradient_hooks import ManualAccumulation, on_every_gradient, on_step
from torch_edl.pytorch.servers import dense
from torch_edl.pytorch.servers.rows import ServerRows, TorchPlan
from torch_edl.pytorch.torch_internals import drop_empty_gradients, take_step
from torch_edl.wire import pserver_pb2 as pb


class ServerSchedule:
    """Takes control of a scheduler: its ``step`` does nothing if the body calls it.

    Args:
        scheduler: a scheduler of ``torch.optim.lr_scheduler``; None to use the rates that the
            optimizer has at each step, which a script may change.
        steps_at: returns the number of minibatches before a version of the servers.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        steps_at: Callable[[int], int],
    ) -> None:
        self._optimizer = optimizer
        self._steps_at = steps_at
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
            for _ in range(self._made, self._steps_at(version)):
                self._step()
                self._made += 1
        return [float(group["lr"]) for group in self._optimizer.param_groups]


class ServedTorchModel:
    """A torch model; see :class:`~torch_edl.engine.servers.served.ServedModel`.

    Args:
        optimizer: optimizer whose kernel and hyperparameters the servers use. A step of the
            optimizer collects the gradients; it changes the parameters only between the minibatches
            of an update.
        scheduler: learning rate scheduler, driven by the updates of the servers; its ``step`` does
            nothing if the body calls it.
        steps_at: returns the number of minibatches before a version of the servers; by default,
            each update has one.
        forward: runs the model on the features of a minibatch, to find the rows of an update in
            advance; None for a script, which calls its model itself.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        *,
        steps_at: Callable[[int], int] = int,
        forward: Callable[[Any], Any] | None = None,
    ) -> None:
        self.model = model
        self.is_script = forward is None
        self._optimizer = optimizer
        self._schedule = ServerSchedule(optimizer, scheduler, steps_at)
        self.kernel = optimizer_config(optimizer)
        self.rows: ServerRows = ServerRows(model, forward)
        if self.is_script:
            self.rows.show_gradients()
        self._dense = dense.dense_parameters(model, optimizer)
        self._initial: list[pb.DenseParameter] = []
        self._frozen = [
            p for group in optimizer.param_groups for p in group["params"] if not p.requires_grad
        ]
        self._weights = list({id(t.weight): t.weight for t in self.rows.tables}.values())
        self._flat: list[dense.FlatVector] = []
        self._exact: dense.ExactBuffers
        # A script may skip its step, but must not add later gradients to those of this batch.
        self._accumulation = ManualAccumulation(model) if self.is_script else None

    def attach(
        self, before_step: Callable[[], None], on_gradient: Callable[[], None] | None
    ) -> None:
        on_step(self._optimizer, lambda _: before_step())
        if on_gradient is not None:
            on_every_gradient(self.model, on_gradient)

    def initial(self) -> Sequence[pb.DenseParameter]:
        # Copied on the first call, because a script may load values after prepare().
        if not self._initial:
            self._initial = [each.to_proto(name) for name, each in sorted(self._dense.items())]
        return self._initial

    def tables(self) -> Sequence[pb.EmbeddingTableInfo]:
        group = group_of(self._optimizer)
        return list({t.table: t.info(group(t.weight)) for t in self.rows.tables}.values())

    def connect(
        self,
        layout: Sequence[Sequence[DenseSegment]],
        exact: Mapping[str, Array],
        memory: Callable[[int, int], Floats],
    ) -> None:
        self._schedule.rewind()
        self._flat = [
            dense.FlatVector(self._dense, segments, partial(memory, server))
            for server, segments in enumerate(layout)
        ]
        self._exact = dense.ExactBuffers(self._dense, exact)

    def load(self, values: Sequence[Floats | None]) -> None:
        for flat, each in zip(self._flat, values, strict=True):
            if self.is_script:
                flat.check_unchanged()
            flat.load(each)

    def forget(self, *, gradients: bool = True) -> None:
        for flat in self._flat:
            flat.forget(gradients=gradients)

    def collect(self, plan: TorchPlan, *, last: bool, lost: bool) -> None:
        self._schedule.note_step()
        self._check_frozen()
        for flat in self._flat:
            if not lost:
                flat.collect()
            if last:
                flat.clear_gradients()
        plan.start_down()
        self.rows.gradients_taken = True
        if not self.is_script:  # a script's are hidden now
            drop_empty_gradients(self._weights)

    def _check_frozen(self) -> None:
        """Raise UsageError if a parameter that the servers do not train has a gradient."""
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise UsageError(
                    f"a parameter of shape {tuple(parameter.shape)} has a gradient and did not "
                    "have requires_grad at job.prepare(), so parameter servers do not train it; "
                    "unfreeze it before prepare(), or use --strategy allreduce"
                )

    def dense_gradients(self) -> list[DenseGradient]:
        return [flat.take_gradient() for flat in self._flat]

    def exact_changes(self) -> Mapping[str, Array]:
        return self._exact.changed()

    def learning_rates(self, version: int) -> Sequence[float]:
        return self._schedule.learning_rates(version)

    def forbid_accumulation(self) -> None:
        if self._accumulation is not None:
            self._accumulation.forbid()

    def gathered(self, client: PsClient) -> dict[str, torch.Tensor]:
        """Pull the whole model from the servers; the model of this process does not change."""
        return dense.gathered(client, self._dense, self.rows.tables)

"""A torch model whose parameters are on servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_edl.engine.servers.plan import PullRows
from torch_edl.engine.servers.served import Array
from torch_edl.errors import EdlError, UsageError, UserCodeError, describe_error
from torch_edl.optim import group_of, optimizer_config
from torch_edl.ps_client.client import DenseGradient, PsClient
from torch_edl.ps_client.partition import DenseSegment, Floats
from torch_edl.pytorch import state_dict
from torch_edl.pytorch.gradient_hooks import ManualAccumulation, on_every_gradient, on_step
from torch_edl.pytorch.servers import dense
from torch_edl.pytorch.servers.plan import TorchPlan
from torch_edl.pytorch.servers.rows import ServerRows
from torch_edl.pytorch.servers.schedule import ServerSchedule
from torch_edl.wire import pserver_pb2 as pb


class ServedTorchModel:
    """A torch model; see :class:`~torch_edl.engine.servers.served.ServedModel`.

    Args:
        optimizer: optimizer whose kernel and hyperparameters the servers use. A step of the
            optimizer collects the gradients; it changes the parameters only between the minibatches
            of an update.
        scheduler: learning rate scheduler, driven by the updates of the servers; its ``step`` does
            nothing if the body calls it.
        local_steps: number of minibatches in an update.
        forward: runs the model on the features of a minibatch, to find the rows of an update in
            advance; None for a script, which calls its model itself.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        *,
        local_steps: int = 1,
        forward: Callable[[Any], Any] | None = None,
    ) -> None:
        self.model = model
        self.is_script = forward is None
        self._optimizer = optimizer
        self._schedule = ServerSchedule(optimizer, scheduler, local_steps)
        self.kernel = optimizer_config(optimizer)
        self.rows = ServerRows(model, forward)
        if self.is_script:
            self.rows.show_gradients()
        self._dense = dense.dense_parameters(model, optimizer)
        self._initial: list[pb.DenseParameter] = []
        self._frozen = [
            p for group in optimizer.param_groups for p in group["params"] if not p.requires_grad
        ]
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

    @property
    def training(self) -> bool:
        return self.model.training

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
        pull_rows: PullRows,
    ) -> None:
        self._schedule.rewind()
        self._flat = [dense.FlatVector(self._dense, segments) for segments in layout]
        self._exact = dense.ExactBuffers(self._dense, exact)
        self.rows.connect(len(layout), pull_rows)

    def plan(self, batches: Sequence[Any]) -> TorchPlan:
        try:
            return self.rows.plan(batches)
        except EdlError:
            raise
        except Exception as error:
            raise UserCodeError(f"the model raised {describe_error(error)}") from error

    def use(self, plan: Any, number: int) -> None:
        if plan is None:
            self.rows.leave()
        else:
            self.rows.use(plan, number)

    def given(self, features: Any) -> Any:
        return self.rows.given(features)

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

    def complaint(self, folder: str, said: str) -> str:
        return state_dict.complaint(folder, said)

    def gathered(self, client: PsClient) -> dict[str, torch.Tensor]:
        """Pull the whole model from the servers; the model of this process does not change."""
        return dense.gathered(client, self._dense, self.rows.tables)

"""What the engine of the servers needs of a model, whatever its framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from torch_edl.data.batch import Update
from torch_edl.engine.servers.plan import Plan, PullRows
from torch_edl.ps_client.client import DenseGradient, Pending, PullResult
from torch_edl.ps_client.partition import Floats, Segment
from torch_edl.wire import pserver_pb2 as pb

Array = npt.NDArray[Any]


class ServedModel(Protocol):
    """A model whose parameters are on servers, and its optimizer, which the servers apply."""

    model: Any
    kernel: pb.OptimizerConfig
    is_script: bool
    """Its user calls the model. Rows of a minibatch are guessed, and each update is one minibatch.
    """

    @property
    def training(self) -> bool:
        """Whether the model is in training mode, in which lookups make rows."""
        ...

    def attach(
        self, before_step: Callable[[], None], on_gradient: Callable[[], None] | None
    ) -> None:
        """Calls methods of the engine, which are not kept alive by that.

        Args:
            before_step: before each step of the optimizer.
            on_gradient: in each backward, as soon as there is a gradient.
        """
        ...

    def initial(self) -> Sequence[pb.DenseParameter]:
        """Parameters and buffers as they start, in the order of their names."""
        ...

    def tables(self) -> Sequence[pb.EmbeddingTableInfo]:
        """The tables of the model."""
        ...

    def connect(
        self,
        layout: Sequence[Sequence[Segment]],
        exact: Mapping[str, Array],
        pull_rows: PullRows,
    ) -> None:
        """Meets servers.

        Args:
            layout: the flat vector of each server.
            exact: values that keep their type, as the servers have them.
            pull_rows: gets the rows of ids that no plan had.
        """
        ...

    def plan(self, batches: Sequence[Any]) -> Plan[Any, Any]:
        """Finds the rows that minibatches need.

        Args:
            batches: features; the whole minibatches of a script.

        Raises:
            UserCodeError: the model raised.
        """
        ...

    def use(self, plan: Any, number: int) -> None:
        """The next forward pass is minibatch ``number`` of a plan; None: of no plan."""
        ...

    def given(self, features: Any) -> Any:
        """What the model may be run on: a copy, where it would change its features."""
        ...

    def load(self, values: Sequence[Floats | None]) -> None:
        """Takes the dense parameters of each server; None: what was loaded is still valid."""
        ...

    def forget(self, *, gradients: bool = True) -> None:
        """Drops what was collected, and the gradients of all parameters."""
        ...

    def collect(self, plan: Any, *, last: bool, lost: bool) -> None:
        """The gradients of a minibatch are complete: adds them to those of the update.

        Args:
            plan: of the update.
            last: the optimizer finds no gradients, since the servers move the model.
            lost: the gradients are of no use.
        """
        ...

    def dense_gradients(self) -> list[DenseGradient]:
        """What was collected, for each server; valid until the next :meth:`collect`."""
        ...

    def exact_changes(self) -> Mapping[str, Array]:
        """Values that keep their type and have changed, by name."""
        ...

    def learning_rates(self, version: int) -> Sequence[float]:
        """Of each parameter group, for the update after ``version``; empty: they stay."""
        ...

    def forbid_accumulation(self) -> None:
        """No optimizer took the gradients of this minibatch: the next backward raises UsageError
        if it adds to them."""
        ...

    def complaint(self, folder: str, said: str) -> str:
        """The message about servers that were restored from the checkpoint of another model."""
        ...


@dataclass
class PlannedUpdate:
    """An update, the rows that its minibatches need, and the pull that is on its way."""

    update: Update
    plan: Plan[Any, Any]
    pull: Pending[PullResult] | None = None
    versions: list[int] | None = None
    """Of the servers, as they were pulled; None: not yet."""
    steps: int = 0
    """Minibatches whose gradients were collected."""

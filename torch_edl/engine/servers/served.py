"""Interface between the engine for parameter servers and a model, for every framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from torch_edl.engine.servers.plan import PullRows, RowPlan
from torch_edl.interfaces import Update
from torch_edl.ps_client.client import DenseGradient, Pending, PullResult
from torch_edl.ps_client.partition import DenseSegment, Floats
from torch_edl.wire import pserver_pb2 as pb

Array = npt.NDArray[Any]


class ServedModel(Protocol):
    """A model whose parameters are on servers, and the optimizer that the servers apply.

    Each framework has one. The engine imports no framework, and knows it by this interface.
    """

    model: Any
    kernel: pb.OptimizerConfig
    is_script: bool
    """True if a script calls the model. Rows are then predicted, and each update has one
    minibatch."""

    @property
    def training(self) -> bool:
        """True if the model is in training mode, in which lookups create rows."""
        ...

    def attach(
        self, before_step: Callable[[], None], on_gradient: Callable[[], None] | None
    ) -> None:
        """Register callbacks of the engine, without keeping the engine alive.

        Args:
            before_step: called before each step of the optimizer.
            on_gradient: called in each backward, as soon as there is a gradient; None for no call.
        """
        ...

    def initial(self) -> Sequence[pb.DenseParameter]:
        """Return the initial parameters and buffers, sorted by name."""
        ...

    def tables(self) -> Sequence[pb.EmbeddingTableInfo]:
        """Return the descriptions of the tables."""
        ...

    def connect(
        self,
        layout: Sequence[Sequence[DenseSegment]],
        exact: Mapping[str, Array],
        pull_rows: PullRows,
    ) -> None:
        """Connect to servers.

        Args:
            layout: layout of the flat vector of each server.
            exact: buffers that keep their type, as stored on the servers.
            pull_rows: returns the rows of lookups that were not planned.
        """
        ...

    def plan(self, batches: Sequence[Any]) -> RowPlan[Any, Any]:
        """Find the rows that minibatches need.

        Args:
            batches: features of the minibatches; for a script, the whole minibatches.

        Raises:
            UserCodeError: the model raised an exception.
        """
        ...

    def use(self, plan: Any, number: int) -> None:
        """Select minibatch ``number`` of a plan for the next forward pass; None for no plan."""
        ...

    def given(self, features: Any) -> Any:
        """Return the input of the model: a copy if the model changes its features in place."""
        ...

    def load(self, values: Sequence[Floats | None]) -> None:
        """Load the dense parameters of each server; None if those loaded before are valid."""
        ...

    def forget(self, *, gradients: bool = True) -> None:
        """Discard the collected gradients, and clear those of all parameters if requested."""
        ...

    def collect(self, plan: Any, *, last: bool, lost: bool) -> None:
        """Add the complete gradients of a minibatch to those of the update.

        Args:
            plan: plan of the update.
            last: hide the gradients from the optimizer, because the servers apply them.
            lost: discard the gradients, because servers were lost.
        """
        ...

    def dense_gradients(self) -> list[DenseGradient]:
        """Return the collected gradient for each server; valid until the next :meth:`collect`."""
        ...

    def exact_changes(self) -> Mapping[str, Array]:
        """Return the changed buffers that keep their type, by name."""
        ...

    def learning_rates(self, version: int) -> Sequence[float]:
        """Return the rate of each group for the update after ``version``; empty if unchanged."""
        ...

    def forbid_accumulation(self) -> None:
        """Make the next backward raise UsageError if it adds to the gradients of this minibatch,
        which no optimizer has applied."""
        ...

    def complaint(self, folder: str, said: str) -> str:
        """Return the message about servers restored from the checkpoint of another model."""
        ...


@dataclass
class PlannedUpdate:
    """An update with the rows that its minibatches need and its pull in flight."""

    update: Update
    plan: RowPlan[Any, Any]
    pull: Pending[PullResult] | None = None
    versions: list[int] | None = None
    """Version of each server's parameters in the pull; None before the pull has ended."""
    steps: int = 0
    """Number of minibatches whose gradients were collected."""

"""Interface of an engine, which turns the gradients of minibatches into model updates.

The training loop (:mod:`torch_edl.training.loop`) gives the minibatches of each update to its body:
the user's script, or the functions of a model file. The engine never runs the body. The loop tells
the engine when an update begins and ends, and a hook of the engine on the optimizer takes the
gradients when the body calls ``step``. The same body therefore runs on all engines:

====================  ==========================  ==========================  =====================
call                  :class:`LocalEngine`        :class:`ServersEngine`      :class:`RingEngine`
====================  ==========================  ==========================  =====================
``begin``             nothing                     loads what was pulled       arms the reduction
``optimizer.step()``  moves the model             collects the gradients      moves the model by the
                                                                              sum over all members
``commit``            the model has it            pushes                      counts the update, or
                                                                              joins another ring
====================  ==========================  ==========================  =====================
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.data.batch import Minibatch, Update
from torch_edl.master_client.leases import HeldLease
from torch_edl.wire import master_pb2 as pb


class Engine(Protocol):
    """Turns updates into model changes. Not thread-safe: only the training loop calls an engine."""

    model: Any

    @property
    def broken(self) -> bool:
        """True if the current update is lost; the loop skips the rest of the update."""
        ...

    def begin(self, update: Update, minibatch: Minibatch) -> Any:
        """Prepare for the next minibatch, which the body receives afterwards.

        Returns:
            The input of the body: the batch, or a copy that the body may change.

        Raises:
            ServersLostError: the servers are unreachable.
        """
        ...

    def backward(self, compute: Callable[[], None] | None) -> bool:
        """Run the backward pass of a model file, while transfers of other processes continue.

        Args:
            compute: runs backward; None if the minibatch gives no gradient.

        Returns:
            True if optimizer and scheduler must step now.
        """
        ...

    def commit(self, update: Update) -> bool:
        """End an update after the body has processed all of its minibatches.

        Returns:
            False if the update is not in the model and must be computed again.

        Raises:
            ServersLostError: the fate of unacknowledged updates is unknown.
        """
        ...

    def settle(self) -> bool:
        """End an update that the body left early. Return True if the optimizer had already stepped,
        so that the update counts."""
        ...

    def evaluating(self) -> AbstractContextManager[Callable[[Any], Any]]:
        """Provide the current model for evaluation outside of an update.

        Yields a function that converts the features of a minibatch to the input of the model.

        Raises:
            ServersLostError: the servers are unreachable, or were unreachable since the last call.
        """
        ...

    def snapshot(self) -> Callable[[Path], Snapshot]:
        """Copy the part of the current model that this process holds.

        Returns:
            A function that creates a folder and writes the copy there; callable from any thread.
        """
        ...

    def close(self) -> None:
        """Close all connections and forget unacknowledged updates."""
        ...


class LeasedEngine(Engine, Protocol):
    """An engine that trains tasks which the master leases to this process."""

    depth: int
    """Number of updates to prefetch beyond the current update."""
    knows_marks: bool
    """True if :meth:`committed` answers without a remote call."""

    def connect(self, cluster: pb.Cluster) -> None:
        """Connect to the servers of ``cluster``, or load the checkpoint that it names.

        Called before the first update and after each change of the servers.

        Raises:
            ServersLostError: the servers are unreachable.
            UsageError: the servers hold another model.
        """
        ...

    def committed(self, lease: HeldLease) -> int:
        """Return the number of leading records of a task that are committed to the model."""
        ...

    def prefetch(self, update: Update) -> None:
        """Prefetch an update, which the loop will begin after the earlier prefetched updates."""
        ...

    def acknowledged(self, *, wait: bool = False) -> list[Update]:
        """Return the updates committed to the model since the last call.

        Args:
            wait: wait until all updates are committed.

        Raises:
            ServersLostError: the fate of unacknowledged updates is unknown.
        """
        ...

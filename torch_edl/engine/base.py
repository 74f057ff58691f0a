"""What a training loop needs of an engine: how the gradients of minibatches become a model.

The loop (:mod:`torch_edl.trainer.loop`) goes through updates, and gives the minibatches of each to
its body: the script of the user, or the functions of a model file. The engine never runs the body.
The engine is told what begins and what is over, and takes the gradients when the body steps the
optimizer, through a hook that the engine registered there. So the same body runs on all engines:

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
from torch_edl.master_client.leases import Lease
from torch_edl.wire import master_pb2 as pb


class Engine(Protocol):
    """Turns updates into changes of the model. Not thread-safe: the training loop owns it."""

    model: Any

    @property
    def broken(self) -> bool:
        """Whether the update that is open is lost: the loop leaves out the rest of it."""
        ...

    def begin(self, update: Update, minibatch: Minibatch) -> Any:
        """The body is about to be given a minibatch. Minibatches come in their order.

        Returns:
            What the body is to be given: the batch, or a copy that the body may change.

        Raises:
            ServersLostError: the parameters cannot be had.
        """
        ...

    def backward(self, compute: Callable[[], None] | None) -> bool:
        """The body of a model file has the loss of the minibatch. What waits for other processes
        continues while backward runs.

        Args:
            compute: runs backward; None: the minibatch gives no gradient.

        Returns:
            Whether what moves the model (optimizer, scheduler) is to act now.
        """
        ...

    def commit(self, update: Update) -> bool:
        """The body is through with all minibatches of the update.

        Returns:
            False: the update did not become part of the model, and has to be computed again.

        Raises:
            ServersLostError: nothing is known of the updates that are not acknowledged.
        """
        ...

    def settle(self) -> bool:
        """The body left its loop within an update. True if the update counts all the same, since
        the body had stepped its optimizer."""
        ...

    def evaluating(self) -> AbstractContextManager[Callable[[Any], Any]]:
        """Within it the model is as it is now, and may be run outside of an update. Gives the
        function from the features of a minibatch to what the model is to be run on.

        Raises:
            ServersLostError: the parameters cannot be had, or could not in the meantime.
        """
        ...

    def snapshot(self) -> Callable[[Path], Snapshot]:
        """Copies the model as it is now, where it is this process that holds it.

        Returns:
            What writes the copy to a folder, which is made, from any thread.
        """
        ...

    def close(self) -> None:
        """Lets go of connections. What is not acknowledged is forgotten."""
        ...


class LeasedEngine(Engine, Protocol):
    """An engine whose updates are of tasks that the master leases to this process alone."""

    depth: int
    """How many updates beyond the one in training are worth prefetching."""
    knows_marks: bool
    """:meth:`committed` answers from this process, without a call."""

    def connect(self, cluster: pb.Cluster) -> None:
        """Meets the servers of ``cluster``, or loads the checkpoint that it names. Called before
        the first update, and again when the servers have changed.

        Raises:
            ServersLostError: the servers cannot be reached.
            UsageError: the servers hold another model.
        """
        ...

    def committed(self, lease: Lease) -> int:
        """How many records of a task, from its start, are in the model for good."""
        ...

    def prefetch(self, update: Update) -> None:
        """The loop will begin this update after those that it prefetched before."""
        ...

    def acknowledged(self, *, wait: bool = False) -> list[Update]:
        """The updates that became part of the model for good since this was last asked.

        Args:
            wait: for all that were committed.

        Raises:
            ServersLostError: nothing is known of those that are not acknowledged.
        """
        ...

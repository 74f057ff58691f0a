"""The interface of engines, which turn the gradients of minibatches into updates of the model.

The training loop (:mod:`torch_edl.training.loop`) gives the minibatches of each update to its body:
the user's script, or the functions of a model file. The loop tells the engine when an update begins
and ends, and a hook of the engine on the optimizer takes the gradients when the body calls
``step``. A script runs backward itself; the body of a model file passes its backward pass to the
engine. The same body therefore runs on all engines:

====================  ==========================  ==========================  =====================
call                  :class:`LocalEngine`        :class:`ServersEngine`      :class:`RingEngine`
====================  ==========================  ==========================  =====================
``begin``             nothing                     loads what was pulled       prepares the sum
``backward``          runs backward               pulls ahead, runs backward  runs backward, or adds
                                                                              no gradient to the sum
``optimizer.step()``  moves the model             collects the gradients      moves the model by the
                                                                              sum over all members
``commit``            the model has it            pushes                      counts the update, or
                                                                              joins another ring
====================  ==========================  ==========================  =====================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch_edl.checkpoint.manifest import Snapshot
    from torch_edl.master_client.leases import HeldLease
    from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True)
class Damaged:
    """A placeholder for a sample that raised."""

    index: int
    """Index of the sample in its dataset."""
    error: str
    """Type and text of the exception."""


@dataclass(frozen=True)
class Batch:
    """One minibatch."""

    features: Any
    """Features: a tensor, or a tuple or dict of tensors."""
    labels: Any
    """Labels: a tensor, or a tuple or dict of tensors; None in prediction."""
    size: int
    """Number of samples."""
    damaged: Sequence[Damaged] = ()
    """Damaged samples, which were left out."""


@dataclass(frozen=True)
class Minibatch:
    """One minibatch of an update."""

    number: int
    """Index in the update, from 0."""
    first: int
    """Offset of the first record: in the task of a lease, or in the pass of a ring."""
    records: int
    """Number of records of the minibatch; 0 if a member has no records in the update."""
    batch: Any
    """Batch that the body of the training loop receives."""


@dataclass
class Update:
    """The minibatches that one process computes between two commits.

    An update of a task has the same records in every attempt and in every worker, so that a server
    can recognize an update that was applied before.
    """

    first: int
    """Offset of the first record: in the task of ``lease``, or in the pass of a ring."""
    last: int
    """Offset after the last record; the range includes records that the minibatches leave out."""
    minibatches: Iterable[Minibatch]
    """The minibatches, in their order."""
    count: int
    """Number of minibatches."""
    records: int
    """Number of records in the update, over all processes of a ring."""
    lease: HeldLease | None = None
    """Lease of the task; None in a ring."""
    retired_before: int = 0
    """Id of the first task that may be unfinished; all earlier tasks are done."""
    damaged: int = 0
    """Number of damaged samples, which were left out."""
    first_records: pb.FirstRecords | None = None
    """Summary of the first records of the task; None unless this is the first update of an attempt
    on a training task."""
    losses: list[float] = field(default_factory=list)
    """Losses of the minibatches that were computed so far."""
    name: Callable[[int, int], str] | None = None
    """Function from two offsets to the name of the records between them, for messages; None:
    unknown."""
    watch: Callable[[int, int, str], AbstractContextManager[None]] | None = None
    """Function from two offsets and the name of the records between them to a context, in which the
    death of this process counts against these records; None: it counts against none."""
    is_by_record: bool = False
    """True if the samples of the minibatches correspond one to one to the records, in order."""

    of_rank: Callable[[int], str] | None = None
    """Function from a rank to the name of the records that this member of the ring computes, for
    messages; None: unknown."""

    @property
    def loss(self) -> float:
        """Loss of the last computed minibatch; NaN if there is none."""
        return self.losses[-1] if self.losses else math.nan

    @property
    def not_finite(self) -> int:
        """Number of minibatches without a gradient, because their loss is not finite."""
        return sum(not math.isfinite(loss) for loss in self.losses)

    def where(self, sample: int | None, *, most: int = 0) -> str:
        """Return the name of the records of a failed update for messages; empty: unknown.

        Args:
            sample: index of the failed sample in the current minibatch; None: unknown.
            most: maximum number of records to name; 0: no limit.
        """
        if self.name is None:
            return ""
        if sample is None or not self.is_by_record:
            last = min(self.first + most, self.last) if most else self.last
            more = f" and {self.last - last:,} more" * (last < self.last)
            return self.name(self.first, last) + more
        minibatch = list(self.minibatches)[len(self.losses)]
        return self.name(minibatch.first + sample, minibatch.first + sample + 1)

    def step(self, minibatch: Minibatch | None = None) -> AbstractContextManager[None]:
        """Return the context in which user code computes a minibatch, or the whole update; see
        :attr:`watch`."""
        if self.watch is None:
            return nullcontext()
        first, last = self.first, self.last
        if minibatch is not None:
            later = (each.first for each in self.minibatches if each.first > minibatch.first)
            first, last = minibatch.first, min(later, default=self.last)
        return self.watch(first, last, self.name(first, last) if self.name else "")

    @property
    def ends_task(self) -> bool:
        """Whether this is the last update of its task."""
        return self.lease is not None and self.last == self.lease.end - self.lease.start


class Engine(Protocol):
    """Turns updates into model changes.

    Not thread-safe: the loop, its source of updates and the body call an engine on one thread.
    ``ServersEngine.follow``, which the heartbeat thread calls, is not part of this interface.
    """

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
        """Run the backward pass of a model file. With servers, the rows of later updates are pulled
        meanwhile.

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
    holds_model: bool
    """True if the whole model is in this process. :meth:`committed` is then exact and answers
    without a remote call. On servers, some may have applied more records than it returns."""

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

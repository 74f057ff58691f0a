"""The one training loop: updates from a source, their minibatches to a body, commits to an engine.

The body stands between two batches. In a script it is the user's code; in the worker of a model
file it is :class:`~torch_edl.trainer.step.ContractBody`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Protocol

from torch_edl.data.batch import Update
from torch_edl.engine.base import Engine
from torch_edl.trainer.metrics import Meter


class Source(Protocol):
    """Where updates come from: the leases of this process, or the position of a ring."""

    def updates(self) -> Iterator[Update]:
        """The updates of this pass. Between two of them the source does whatever else there is
        to do.

        Raises:
            DismissedError: the job goes on without this process.
        """
        ...

    def check(self) -> None:
        """Called after each run of the body: raises if the script did what it must not do."""
        ...

    def after(self, update: Update, *, counted: bool) -> None:
        """The update was committed; or, not counted, its records come again."""
        ...

    def recover(self, update: Update, error: BaseException) -> None:
        """The update failed with ``error``: raises it, or sees to it that its records come again
        or are reported."""
        ...

    def leave(self) -> bool:
        """The body left its loop; true if the update that was open counts all the same."""
        ...


class Loop:
    """Iterable once; gives the batches that the body is to be run on.

    Args:
        meter: takes what the body logs, and counts it once the update counts.
    """

    def __init__(self, engine: Engine, source: Source, meter: Meter) -> None:
        self._engine = engine
        self._source = source
        self._meter = meter
        self._update: Update | None = None
        self._failure: BaseException | None = None

    def __iter__(self) -> Generator[Any]:
        try:
            for update in self._source.updates():
                yield from self._compute(update)
        except BaseException:
            self._meter.settle(counted=self._source.leave())
            raise

    def _compute(self, update: Update) -> Iterator[Any]:
        self._update = update
        try:
            for minibatch in update.minibatches:
                self._meter.open(minibatch.records)
                yield self._engine.begin(update, minibatch)
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                self._source.check()
                if self._engine.broken:
                    break
            counted = self._engine.commit(update)
        except (Exception, SystemExit) as error:
            self._meter.settle(counted=False)
            self._source.recover(update, error)
        else:
            self._meter.settle(counted=counted)
            self._source.after(update, counted=counted)

    # ---- for the body of a model file, whose errors are those of a task ----

    def note(self, loss: float) -> None:
        """The body is through with a minibatch of this loss; NaN: it gave no gradient."""
        assert self._update is not None
        self._update.losses.append(loss)

    def fail(self, error: BaseException) -> None:
        """The body raised ``error``."""
        self._failure = error

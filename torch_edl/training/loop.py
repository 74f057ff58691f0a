"""The training loop: takes updates from a source, passes their minibatches to a body, and commits
the updates to an engine.

The body is the code between two batches: the user's loop in a script, and
:meth:`~torch_edl.training.user_model.UserModel.body` in the worker of a model file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from torch_edl.interfaces import Engine, Update
from torch_edl.training.metrics import Meter


class UpdateSource(Protocol):
    """A source of updates: the leased tasks of this process, or the position of a ring."""

    def updates(self) -> Iterator[Update]:
        """Yield the updates of this pass. Between two updates the source executes other tasks.

        Raises:
            DismissedError: the job continues without this process.
        """
        ...

    def after(self, update: Update, *, counted: bool) -> None:
        """Handle the end of an update.

        Args:
            counted: True if the update is in the model; False if its records are trained again.
        """
        ...

    def recover(self, update: Update, error: BaseException) -> None:
        """Handle an update that failed: raise ``error``, schedule the records again, or report
        the task as failed."""
        ...

    def leave(self) -> bool:
        """Handle a body that left its loop; return True if the current update counts."""
        ...


def loop(engine: Engine, source: UpdateSource, meter: Meter) -> Generator[Any, float | None]:
    """Yield the batches for the body, which may send back the loss of a batch.

    Args:
        meter: collects the metrics that the body logs, and counts them when the update counts.
    """
    try:
        for update in source.updates():
            try:
                for minibatch in update.minibatches:
                    meter.open(minibatch.records)
                    loss = yield engine.begin(update, minibatch)
                    if loss is not None:  # only run_body sends a loss
                        update.losses.append(loss)
                    if engine.broken:
                        break
                counted = engine.commit(update)
            except (Exception, SystemExit) as error:
                meter.settle(counted=False)
                source.recover(update, error)
            else:
                meter.settle(counted=counted)
                source.after(update, counted=counted)
    except BaseException:
        meter.settle(counted=source.leave())
        raise


def run_body(batches: Generator[Any, float | None], body: Callable[[Any], float]) -> None:
    """Run the body of a model file on all batches of a loop. Errors of the body are thrown into the
    loop.

    Args:
        batches: the generator of :func:`loop`.
        body: computes a minibatch and returns its loss; NaN: the minibatch gave no gradient.
    """
    with contextlib.suppress(StopIteration):
        batch = next(batches)
        while True:
            try:
                loss = body(batch)
            except (Exception, SystemExit) as error:
                batch = batches.throw(error)
            else:
                batch = batches.send(loss)

"""The one training loop: updates from a source, their minibatches to a body, commits to an engine.

The body stands between two batches. In a script the body is the user's code; in the worker of a
model file it is :meth:`~torch_edl.training.user_model.UserModel.body`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from torch_edl.engine.base import Engine
from torch_edl.training.metrics import Meter
from torch_edl.training.source import UpdateSource


def loop(engine: Engine, source: UpdateSource, meter: Meter) -> Generator[Any, float | None]:
    """Gives the batches that the body is to be run on.

    Args:
        meter: takes what the body logs, and counts it once the update counts.
    """
    try:
        for update in source.updates():
            try:
                for minibatch in update.minibatches:
                    meter.open(minibatch.records)
                    loss = yield engine.begin(update, minibatch)
                    if loss is not None:  # only run_body knows it
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
    """Runs the body of a model file on the batches of a loop; its errors are those of a task.

    Args:
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

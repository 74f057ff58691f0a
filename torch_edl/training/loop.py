"""The training loop: takes updates from a source, passes their minibatches to a body, commits the
updates to an engine, and counts the metrics of committed batches.

The body is the code between two batches: the user's loop in a script, and
:meth:`~torch_edl.training.user_model.UserModel.body` in the worker of a model file.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from torch_edl.errors import UsageError
from torch_edl.interfaces import Engine, Update

log = logging.getLogger(__name__)
# Number of values per name before they are summed, which limits memory if no means are read.
_KEPT = 1000


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


class Stopwatch:
    """Adds the time of a loop to its activities.

    Args:
        seconds: the sum of each activity.
        clock: returns seconds from any origin.
    """

    def __init__(
        self,
        seconds: MutableMapping[str, float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since = clock()

    def end(self, activity: str) -> None:
        """Add the time since the end of the last activity."""
        now = self._clock()
        self._seconds[activity] += now - self._since
        self._since = now


def loop(
    engine: Engine,
    source: UpdateSource,
    meter: Meter,
    seconds: MutableMapping[str, float] | None = None,
) -> Generator[Any, float | None]:
    """Yield the batches for the body, which may send back the loss of a batch.

    Args:
        meter: collects the metrics that the body logs, and counts them when the update counts.
        seconds: ``seconds`` of :class:`~torch_edl.master_client.heartbeat.WorkerStatus`; None in a
            process without a master.
    """
    watch = Stopwatch(defaultdict(float) if seconds is None else seconds)
    try:
        for update in source.updates():
            watch.end("data")
            try:
                for minibatch in update.minibatches:
                    meter.open(minibatch.records)
                    batch = engine.begin(update, minibatch)
                    watch.end("pull")
                    with update.step(minibatch):
                        loss = yield batch
                    watch.end("compute")
                    if loss is not None:  # only run_body sends a loss
                        update.losses.append(loss)
                    if engine.broken:
                        break
                counted = engine.commit(update)
            except GeneratorExit:
                raise
            except BaseException as error:  # a panic of a Rust extension is no Exception
                meter.settle(counted=False)
                source.recover(update, error)
            else:
                meter.settle(counted=counted)
                source.after(update, counted=counted)
            watch.end("push")
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
            except BaseException as error:
                batch = batches.throw(error)
            else:
                batch = batches.send(loss)


class Meter:
    """Means of logged values by name, weighted by records.

    Logged values count when the update of their batch is settled. Tensors are read when the means
    are read, or after 1000 values, so that logging does not wait for a GPU.

    Args:
        warns: log a warning at the first ``loss`` that is not finite. Must be False in a job with a
            master, which logs this warning itself.
    """

    def __init__(self, *, warns: bool = False) -> None:
        self._warns = warns
        self._open: list[tuple[str, Any, int]] = []
        self._records = 0
        self._kept: dict[str, list[tuple[Any, int]]] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self.newest: dict[str, Any] = {}
        """Values of the newest update that counts, by name: numbers, or tensors of one number."""

    def open(self, records: int) -> None:
        """Begin a batch of ``records`` records; values of a batch with 0 records are ignored."""
        self._records = records

    def note(self, values: Mapping[str, Any]) -> None:
        """Log values of the current batch: numbers, or tensors of one number.

        Raises:
            UsageError: a value is neither a number nor a tensor of one number.
        """
        for name, value in values.items():
            self._open.append((name, _checked(name, value), self._records))

    def settle(self, *, counted: bool) -> None:
        """End an update: count the values logged since the previous update, or drop them."""
        if counted:
            self.newest = {name: value for name, value, records in self._open if records}
            for name, value, records in self._open:
                if records:
                    self._kept.setdefault(name, []).append((value, records))
                    if len(self._kept[name]) >= _KEPT:
                        self._fold(name)
        self._open.clear()

    def take(self) -> dict[str, float]:
        """Return the means of the values since the last call, by name. If there are no values, the
        mean of any name is NaN."""
        means = {name: total / records for name, (total, records) in self.totals().items()}
        return means or defaultdict(lambda: math.nan)

    def totals(self) -> dict[str, tuple[float, int]]:
        """Return the sum of value times records and the number of records, by name, since the last
        call of this method or of :meth:`take`."""
        for name in self._kept:
            self._fold(name)
        sums, self._sums = self._sums, {}
        return sums

    def _fold(self, name: str) -> None:
        total, records = self._sums.get(name, (0.0, 0))
        for value, weight in self._kept[name]:
            total += float(value) * weight
            records += weight
        if self._warns and name == "loss" and not math.isfinite(total):
            self._warns = False
            log.warning("the loss is %s; lower the learning rate, or look at the data", total)
        if records:
            self._sums[name] = total, records
        self._kept[name].clear()


def _checked(name: str, value: Any) -> Any:
    """Return a value that ``float`` accepts later, in any thread. A tensor is not read.

    Raises:
        UsageError: the value is neither a number nor a tensor of one number.
    """
    if hasattr(value, "detach"):  # a tensor of torch
        if value.numel() == 1:
            return value.detach()
        found = f"a tensor of shape {tuple(value.shape)}"
    else:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            found = f"{value!r:.60}"
    raise UsageError(f"log({name}=...): {found}; give a number, or a tensor of one number")

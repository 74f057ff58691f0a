"""Feeds the observers of a job, each on a thread of its own, with the events and the numbers of its
statuses.

See :class:`torch_edl.interfaces.Observer` for the contract.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from operator import methodcaller

from torch_edl.config import JobConfig, extensions
from torch_edl.errors import UsageError, describe_error
from torch_edl.events import Event, ModelEvaluated
from torch_edl.interfaces import Observer
from torch_edl.launch.jobs.status import scalars
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# Every job has this observer, which keeps its curves in its folder.
_HISTORY = "history"
_EVERY_S = 1.0
_QUEUE_ITEMS = 10_000
# Seconds after the end of a job for the last items of an observer whose last call failed.
_FAILING_S = 5.0


def checked(config: JobConfig) -> JobConfig:
    """Return the job with the values of ``--observe`` as the observers want them stored.

    Raises:
        UsageError: no installed package has the observer, or the observer rejects its value.
    """
    observe = []
    for text in config.observe:
        name, kind, value = _parts(text)
        stored = kind.check(value)
        observe.append(f"{name}={stored}" if stored else name)
    if config.tensorboard:
        _, kind, value = _parts(_tensorboard(config))
        kind.check(value)
    return dataclasses.replace(config, observe=tuple(observe))


class Observers:
    """Passes what the statuses of a job tell to its observers.

    A context: at its end, the observers receive the end of the job and their last items.
    """

    def __init__(self, config: JobConfig, clock: Callable[[], float] = time.monotonic) -> None:
        texts = [*config.observe, *([_tensorboard(config)] if config.tensorboard else [])]
        texts += [_HISTORY] * (_HISTORY in extensions.installed(extensions.OBSERVERS))
        self._threads = [_ObserverThread(text, config) for text in texts]
        self._clock = clock
        self._ended = False
        self.events_after = 0
        """Number of the newest event that was passed on."""
        self._written = -math.inf
        self._newest = (0, "")
        self._last: pb.GetStatusResponse | None = None
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Observers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end("left")

    def update(self, status: pb.GetStatusResponse) -> None:
        """Pass on what is new in a status; never waits for an observer."""
        if not self._threads:
            return
        self._last = status
        for message in status.events:
            if message.sequence > self.events_after:
                self.events_after = message.sequence
                self._pass_on(event_messages.from_message(message), message.time)
        if self._clock() - self._written >= _EVERY_S:
            self._training(status)

    def end(self, state: str, error: str = "") -> None:
        """Pass on the last step and the end of the job, and wait until all is received.

        The wait for an observer is at most its ``END_S``, and 5 s if its last call failed.

        Later calls have no effect.
        """
        if self._ended:
            return
        self._ended = True
        if self._last is not None:
            self._training(self._last)
        began = time.monotonic()
        for thread in self._threads:
            thread.end(state, error)
        for thread in self._threads:
            thread.wait(began)

    def _pass_on(self, event: Event, time: float) -> None:
        self._put(methodcaller("event", time, event))
        if isinstance(event, ModelEvaluated):
            values = {f"eval/{k}": math.nan if v is None else v for k, v in event.metrics.items()}
            self._scalars(event.steps, values)

    def _training(self, status: pb.GetStatusResponse) -> None:
        # The loss may arrive after its step; as text, since NaN is not equal to itself.
        newest = status.steps, str(status.loss)
        if not status.steps or newest == self._newest:
            return
        self._written, self._newest = self._clock(), newest
        self._scalars(status.steps, scalars(status))

    def _scalars(self, step: int, values: dict[str, float]) -> None:
        self._put(methodcaller("scalars", step, time.time(), values))

    def _put(self, call: Callable[[Observer], None]) -> None:
        for thread in self._threads:
            thread.put(call)


class _ObserverThread(threading.Thread):
    """Calls one observer on a daemon thread, which never keeps the process alive."""

    def __init__(self, text: str, job: JobConfig) -> None:
        self._observer, self._kind, self._value = _parts(text)
        super().__init__(name=f"observer {self._observer}", daemon=True)
        self._job = job
        # Unbounded, because the call of end() must fit; put() holds the limit.
        self._queue: queue.SimpleQueue[Callable[[Observer], None] | None] = queue.SimpleQueue()
        self._failing = False
        self._warned = False

    def put(self, call: Callable[[Observer], None]) -> None:
        if self._queue.qsize() >= _QUEUE_ITEMS:
            self._warn("the observer is too slow, and loses items")
        else:
            self._queue.put(call)

    def end(self, state: str, error: str) -> None:
        self._queue.put(methodcaller("end", state, error))
        self._queue.put(None)

    def wait(self, began: float) -> None:
        """Wait until the last item was received, or until the time of the observer is over, which
        began at ``began``."""
        limit_s = _FAILING_S if self._failing else self._kind.END_S
        self.join(max(0.0, began + limit_s - time.monotonic()))
        if self.is_alive():
            self._warn(f"the observer did not end within {limit_s:.0f} s, and loses items")

    def run(self) -> None:
        """Make the observer, and call it with each item."""
        try:
            observer = self._kind(self._value)
            observer.begin(self._job)
        except BaseException as error:
            self._warn(f"{describe_error(error)}; the observer receives nothing")
            return
        while (call := self._queue.get()) is not None:
            try:
                call(observer)
                self._failing = False
            except BaseException as error:
                self._failing = True
                self._warn(f"{describe_error(error)}; the observer loses items")

    def _warn(self, text: str) -> None:
        """Log the first problem of the observer; the job goes on."""
        if not self._warned:
            self._warned = True
            log.warning("--observe %s: %s", self._observer, text)


def _parts(text: str) -> tuple[str, type[Observer], str]:
    """Return the name, class and value of ``NAME[=VALUE]``."""
    name, _, value = text.partition("=")
    if not name:
        raise UsageError(f"--observe {text}: write NAME or NAME=VALUE")
    return name, extensions.load(extensions.OBSERVERS, name, f"--observe {name}"), value


def _tensorboard(config: JobConfig) -> str:
    return f"tensorboard={config.tensorboard}"

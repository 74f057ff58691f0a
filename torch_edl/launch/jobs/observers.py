"""Feeds the observers of a job, each on a thread of its own, from the statuses of the job.

See :class:`torch_edl.interfaces.Observer` for the contract.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from operator import methodcaller

from torch_edl.config import JobConfig, extensions
from torch_edl.errors import UsageError, describe_error
from torch_edl.interfaces import JobEvent, Observer
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# Every job has this observer, which keeps its curves in its folder.
_HISTORY = "history"
_EVERY_S = 1.0
_QUEUE_ITEMS = 1000
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
        self._state = ""
        self._processes: dict[tuple[str, int, int], str] = {}
        self._event = 0
        self._waits: dict[int, float] = {}  # start of the wait of each worker without a step
        self._evaluations: dict[int, bytes] = {}
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
        for event in self._new_events(status):
            self._put(methodcaller("event", event))
        for evaluation in status.evaluations:
            # Compared as bytes, since NaN is not equal to itself.
            content = evaluation.SerializeToString(deterministic=True)
            if self._evaluations.get(evaluation.steps) != content:
                self._evaluations[evaluation.steps] = content
                values = {f"eval/{k}": v for k, v in evaluation.metrics.items()}
                self._scalars(evaluation.steps, values)
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

    def _new_events(self, status: pb.GetStatusResponse) -> Iterator[JobEvent]:
        now = time.time()
        if status.state != self._state:
            self._state = status.state
            yield JobEvent(
                now,
                "state",
                "info",
                f"the job is {status.state}",
                {"state": status.state, "epoch": status.epoch},
            )
        for process in status.processes:
            key = (process.role, process.id, process.pid)
            if self._processes.get(key) == process.state:
                continue
            self._processes[key] = process.state
            yield JobEvent(
                now,
                "process",
                "info",
                f"{process.role}-{process.id}: {process.exit or process.state}",
                {
                    "role": process.role,
                    "id": process.id,
                    "pid": process.pid,
                    "state": process.state,
                    "exit": process.exit,
                },
            )
        yield from self._new_waits(status, now)
        for event in status.events:
            if event.sequence <= self._event:
                continue
            self._event = event.sequence
            numbered: dict[str, str | float] = {"sequence": event.sequence}
            if event.traceback:
                numbered["traceback"] = event.traceback
            yield JobEvent(event.time, "log", event.level, event.text, numbered)

    def _new_waits(self, status: pb.GetStatusResponse, now: float) -> Iterator[JobEvent]:
        """The waits of workers that are over."""
        waits = {
            p.id: now - p.waits_s
            for p in status.processes
            if p.waits_s and p.state == "running" and status.state in ("running", "finishing")
        }
        for id in self._waits.keys() - waits.keys():
            since = self._waits[id]
            text = f"worker-{id} made no step for {now - since:.0f} s"
            seconds = round(now - since, 1)
            yield JobEvent(now, "wait", "info", text, {"id": id, "seconds": seconds})
        self._waits = {**waits, **{id: self._waits[id] for id in waits if id in self._waits}}

    def _training(self, status: pb.GetStatusResponse) -> None:
        # The loss may arrive after its step; as text, since NaN is not equal to itself.
        newest = status.steps, str(status.loss)
        if not status.steps or newest == self._newest:
            return
        self._written, self._newest = self._clock(), newest
        running = [p for p in status.processes if p.role == "worker" and p.state == "running"]
        values = {f"rate/{name}": rate for name, rate in status.rates.items()}
        values |= {f"train/{name}": value for name, value in status.logged.items()}
        if status.kind != "script":  # a script logs its loss itself
            values["train/loss"] = status.loss
        values["train/workers"] = len(running)
        loaded = [p for p in status.processes if p.rows]
        if loaded and len(loaded) >= status.servers_wanted:  # a server may be restoring its rows
            values["servers/rows"] = sum(p.rows for p in loaded)
            values["servers/bytes"] = sum(p.bytes for p in loaded)
        self._scalars(status.steps, values)

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

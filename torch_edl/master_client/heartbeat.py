"""Heartbeat of a worker: reports the worker's progress each second and handles the answer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any

import grpc

from torch_edl.processes import pressure, usage
from torch_edl.processes.this_process import all_stacks, dump_unless_called_within
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import MASTER_AWAY_S, Absence, Stub

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
_CALL_S = 5.0
# Largest number of names of logged values in one heartbeat.
_MOST_VALUES = 100
# Seconds that a heartbeat waits for logged values.
_READ_S = 0.2


ACTIVITIES = ("data", "pull", "compute", "push")
"""What a training loop does: it waits for records or does other tasks, waits for parameters, runs
the body (which includes the exchange in a ring), and commits the update."""


@dataclass
class WorkerStatus:
    """Content of a heartbeat, written by the training loop.

    The public fields have the same names in ``HeartbeatRequest``.
    """

    training: int = 0
    """Number of the training of a script; 0 if the process runs no script."""
    steps: int = 0
    records: int = 0
    version: int = 0
    phase: str = "importing"
    ring: int = 0
    """Strategy allreduce: number of the worker's ring; 0 if it is in none."""
    position: int = 0
    """Records of the current pass over the data that the model has consumed."""
    pass_index: int = 0
    pass_records: int = 0
    """Records of the whole pass over all epochs; 0 if unknown."""
    left_out: int = 0
    """Records up to ``position`` that gave no gradient."""
    nan_updates: int = 0
    """Updates of a script in a ring that were left out, since their gradients were not finite."""
    damaged: int = 0
    """Damaged samples skipped in a ring. Those of leased tasks are in ``TaskResult``."""
    epoch: int = 0
    """Completed epochs of a script."""
    epochs: int = 0
    """Total epochs of a script; 0 if unknown."""
    records_before: int = 0
    """Records of the passes before the current pass."""
    records_left: int = 0
    """Records of the passes before the current pass that the script left out."""
    records_early: int = 0
    """Records of all passes that are not trained because the script left its loops early."""
    records_to_come: int = 0
    """Records of the passes after the current pass, as far as known."""
    leaving: bool = False
    """True if the worker received SIGTERM or a notice, and leaves after its current work."""
    notice: str = ""
    """Text of the notice of preemption; empty if there was none."""
    machine: dict[str, float] = field(default_factory=dict)
    """Values that a probe measured on this machine, by name."""
    busy_s: float = 0.0
    """Strategy allreduce: seconds of forward and backward since the start, without waits for other
    members."""
    stacks: str = ""
    """The stacks of all threads, if the master has asked for them."""
    stacks_number: int = 0
    """The number of the newest request for stacks."""
    epochs_heard: int = 0
    """Number of ends of epochs that the worker was informed of."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0.0))
    """Seconds of the training loop since the worker started, by activity."""
    _values: dict[str, list[Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Protects ``_values`` and ``_means``: two threads may send heartbeats."""
    _means: Future[dict[str, float]] | None = None
    """Means that a thread is computing, and no heartbeat has taken yet."""
    _stepped_at: float = math.inf
    """Monotonic time of the last step; infinite before the first."""
    _standstill: tuple[float, float] = (0.0, 0.0)
    """Start and end of the longest time between two steps since :meth:`answered`."""

    def stepped(self, steps: int) -> None:
        """Set the number of steps; the last step was made just now."""
        if steps == self.steps:
            return
        now = time.monotonic()
        begin, end = self._standstill
        if now - self._stepped_at > end - begin:
            self._standstill = self._stepped_at, now
        self.steps, self._stepped_at = steps, now

    def answered(self, sent: float) -> None:
        """Record that the master has answered the heartbeat of time ``sent``. An earlier standstill
        is then not reported to the next master."""
        self._standstill = sent, sent

    def standstill(self, contact: float, now: float) -> pb.Standstill | None:
        """Return the longest time without a step since ``contact``; None before the first step."""
        if not math.isfinite(self._stepped_at):
            return None
        spans = [self._standstill, (self._stepped_at, now)]
        spans = [(max(contact, begin), end) for begin, end in spans]
        begin, end = max(spans, key=lambda span: span[1] - span[0])
        return pb.Standstill(began_s=now - begin, ended_s=now - end)

    def note(self, values: Mapping[str, Any]) -> None:
        """Add values of one update to the means of this interval.

        A value is a number or an object that ``float`` accepts. ``float`` is called later by a
        thread of its own, so that neither training nor the heartbeat waits for a GPU. ``loss`` is
        the loss of one minibatch.
        """
        with self._lock:
            for name, value in values.items():
                if name in self._values or len(self._values) < _MOST_VALUES:
                    self._values.setdefault(name, []).append(value)

    def take_values(self) -> dict[str, float]:
        """Return the means since the last call, by name.

        A value on a GPU can be read only when the GPU has computed it, which may wait for a lost
        member of a ring, of which the next heartbeat tells. If the values cannot be read within
        0.2 s, the result is empty, and a later call returns them.
        """
        with self._lock:
            means = self._means
            if means is None:
                values, self._values = self._values, {}
                means = self._means = Future()
                reader = threading.Thread(
                    target=_read, args=(values, means), name="logged-values", daemon=True
                )
                reader.start()
        try:
            found = means.result(_READ_S)
        except TimeoutError:
            return {}
        with self._lock:
            if self._means is not means:  # another thread sends them
                return {}
            self._means = None
        return found

    def request(self, worker_id: int) -> pb.HeartbeatRequest:
        """Return the heartbeat of a worker, with the means since the last heartbeat."""
        values = self.take_values()
        told = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
        loss = values.get("loss", math.nan)
        used = pb.Usage(**usage.read())
        return pb.HeartbeatRequest(
            worker_id=worker_id, loss=loss, logged=values, usage=used, **told
        )


def _read(values: Mapping[str, Sequence[Any]], means: Future[dict[str, float]]) -> None:
    found = {}
    try:
        found = {name: sum(map(float, of)) / len(of) for name, of in values.items()}
    except Exception as error:  # of a GPU, which the training meets, too
        log.warning("logged values cannot be read: %s", error)
    means.set_result(found)


class Heartbeat:
    """A thread that sends a heartbeat each second and applies the answers of the master.

    Attributes:
        draining: set if the worker must finish its update and leave.
        lost: set if the master has declared the worker lost.
        stopping: set if the user stops the job, so that all workers leave.
        stale_ring: number of the newest ring that workers must leave after a step.

    The callbacks are called in the heartbeat thread: ``on_broken_ring`` with the number up to which
    rings have lost a member, ``on_servers`` with the incarnation of the newest parameter server,
    and ``on_give_back`` if tasks that this worker has not begun are to be returned to the master.
    """

    def __init__(self, master: Stub, worker_id: int, progress: WorkerStatus) -> None:
        self._master = master
        self._worker_id = worker_id
        self._progress = progress
        self._stop = threading.Event()
        self._lock = threading.Lock()  # two threads may send heartbeats
        self.draining = threading.Event()
        self.lost = threading.Event()
        self.stopping = threading.Event()
        self.on_broken_ring: Callable[[int], None] = lambda ring: None
        self.on_servers: Callable[[int], None] = lambda newest: None
        self.on_give_back: Callable[[], None] = lambda: None
        self.on_silence: Callable[[], None] = lambda: None
        """Called in the heartbeat thread if the master is away for longer than allowed."""
        self.dump_after_s = 0.0
        """Seconds without a heartbeat after which the stacks of all threads are written to stderr;
        0: never."""
        self._tells_machine = False
        self.stale_ring = 0
        self.epochs_open = 0
        """Epochs whose records may be trained now; 0: all."""
        self._epoch_ends: deque[tuple[int, dict[str, float]]] = deque()
        self._contact = time.monotonic()
        self._absence = Absence(HEARTBEAT_INTERVAL_S + _CALL_S)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send one last heartbeat and end the thread."""
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def silence_s(self) -> float:
        """Seconds since the last answered heartbeat was sent."""
        return time.monotonic() - self._contact

    def _run(self) -> None:
        while True:
            ended = self._stop.wait(HEARTBEAT_INTERVAL_S)
            if self.dump_after_s:
                dump_unless_called_within(0.0 if ended else self.dump_after_s)
            self.beat()
            if ended:
                return

    def beat(self) -> None:
        """Send one heartbeat and apply the answer."""
        request = self._progress.request(self._worker_id)
        standstill = self._progress.standstill(self._contact, time.monotonic())
        if standstill is not None:
            request.standstill.CopyFrom(standstill)
        if self._tells_machine:
            request.machine.update(pressure.read()._asdict())
        sent = time.monotonic()
        try:
            answer = self._master.call(request, timeout_s=_CALL_S)
        except grpc.RpcError as error:
            # Not fatal: training continues with the leases that the worker holds.
            log.debug("heartbeat: %s", error.code())
            if self._absence.failed() > MASTER_AWAY_S:
                self.on_silence()
            return
        self._contact = sent
        self._progress.answered(sent)
        self._tells_machine = answer.tell_machine
        self._absence.answered()
        self.stale_ring = max(self.stale_ring, answer.stale_ring, answer.broken_ring)
        if answer.broken_ring:
            self.on_broken_ring(answer.broken_ring)
        self.on_servers(answer.newest_server)
        if answer.give_back:
            self.on_give_back()
        if answer.stopping:
            self.stopping.set()
        if answer.drain:
            self.draining.set()
        if not answer.known:
            self.lost.set()
        self.epochs_open = answer.epochs_open
        with self._lock:
            for number, end in enumerate(answer.epoch_ends, request.epochs_heard + 1):
                if number > self._progress.epochs_heard:
                    self._progress.epochs_heard = number
                    self._epoch_ends.append((number, dict(end.values)))
        if answer.stacks_number > self._progress.stacks_number:
            self._tell_stacks(answer.stacks_number)

    def take_epoch_ends(self) -> Iterator[tuple[int, dict[str, float]]]:
        """The epochs that ended since the last call, counted from 1, and the figures of the
        evaluation after each; empty if there was none."""
        while self._epoch_ends:
            yield self._epoch_ends.popleft()

    def _tell_stacks(self, number: int) -> None:
        self._progress.stacks, self._progress.stacks_number = all_stacks(), number
        self.beat()
        self._progress.stacks = ""

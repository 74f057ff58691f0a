"""A worker's heartbeat: a report each second of how far the worker is, and the answer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import grpc

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.absence import MASTER_AWAY_S, Absence
from torch_edl.wire.channel import Stub

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
_CALL_S = 5.0
# At most so many names of logged values in a heartbeat.
_MOST_VALUES = 100


@dataclass
class WorkerStatus:
    """What each heartbeat reports, in fields that ``HeartbeatRequest`` has too; written by the
    training loop."""

    steps: int = 0
    records: int = 0
    version: int = 0
    phase: str = "importing"
    ring: int = 0
    """Strategy allreduce: the ring that the worker is in; 0: none."""
    position: int = 0
    """Records of the pass over data that are in the model."""
    pass_index: int = 0
    pass_records: int = 0
    """Records of the whole pass, all epochs; 0: not known."""
    left_out: int = 0
    """Records up to ``position`` that gave no gradient."""
    damaged: int = 0
    """Damaged samples left out in a ring; those of leased tasks are in ``TaskResult``."""
    epoch: int = 0
    """Epochs of a script that are over."""
    epochs: int = 0
    """All epochs of a script; 0: not known."""
    records_before: int = 0
    """Records of the passes before this one."""
    records_to_come: int = 0
    """Records of the passes after this one, as far as known."""
    leaving: bool = False
    """The worker got SIGTERM, and leaves after what it has in hand."""
    _values: dict[str, list[Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Of ``_values``, which the thread of the heartbeat takes."""

    def add_loss(self, loss: float) -> None:
        """Counts the loss of one minibatch into the mean of this interval."""
        self.note({"loss": loss})

    def note(self, values: Mapping[str, Any]) -> None:
        """Counts values of one update into the means of this interval: numbers, or what becomes
        one by ``float``, which is not done here: a GPU is not waited for."""
        with self._lock:
            for name, value in values.items():
                if name in self._values or len(self._values) < _MOST_VALUES:
                    self._values.setdefault(name, []).append(value)

    def take_values(self) -> dict[str, float]:
        """The means since the last call, by name."""
        with self._lock:
            values, self._values = self._values, {}
        return {name: sum(map(float, of)) / len(of) for name, of in values.items()}

    def request(self, worker_id: int) -> pb.HeartbeatRequest:
        """The heartbeat of a worker, with the means since the one before."""
        values = self.take_values()
        told = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
        loss = values.get("loss", math.nan)
        return pb.HeartbeatRequest(worker_id=worker_id, loss=loss, logged=values, **told)


class Heartbeat:
    """A thread that sends a heartbeat each second, and keeps what the master answers.

    ``draining`` is set when the worker is to finish its update and leave; ``lost`` when the master
    has declared the worker lost.

    ``stopping`` is set when the user stops the job, so that all workers leave.

    ``on_broken_ring`` is called (in this thread) with the number up to which rings have lost a
    member; ``stale_ring`` is the newest ring that is to be left after a step.

    ``on_servers`` is called (in this thread) with the incarnation of the newest parameter server.

    ``on_server_args`` is called (in this thread) with the arguments of the parameter server that
    this process is to become.
    """

    def __init__(self, master: Stub, worker_id: int, progress: WorkerStatus) -> None:
        self._master = master
        self._worker_id = worker_id
        self._progress = progress
        self._stop = threading.Event()
        self.draining = threading.Event()
        self.lost = threading.Event()
        self.stopping = threading.Event()
        self.on_broken_ring: Callable[[int], None] = lambda ring: None
        self.on_server_args: Callable[[list[str]], None] = lambda args: None
        self.on_servers: Callable[[int], None] = lambda newest: None
        self.on_silence: Callable[[], None] = lambda: None
        """Called (in this thread) when the master has been away for longer than it may be."""
        self.stale_ring = 0
        self._contact = time.monotonic()
        self._absence = Absence(HEARTBEAT_INTERVAL_S + _CALL_S)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Sends one last heartbeat and ends the thread."""
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def silence_s(self) -> float:
        """Seconds since the last heartbeat that the master answered was sent."""
        return time.monotonic() - self._contact

    def _run(self) -> None:
        while True:
            ended = self._stop.wait(HEARTBEAT_INTERVAL_S)
            self.beat()
            if ended:
                return

    def beat(self) -> None:
        """Sends one heartbeat now."""
        request = self._progress.request(self._worker_id)
        sent = time.monotonic()
        try:
            answer = self._master.call(request, timeout_s=_CALL_S)
        except grpc.RpcError as error:
            # Not fatal by itself: training continues, on the leases that are held.
            log.debug("heartbeat: %s", error.code())
            if self._absence.failed() > MASTER_AWAY_S:
                self.on_silence()
            return
        self._contact = sent
        self._absence.answered()
        self.stale_ring = max(self.stale_ring, answer.stale_ring, answer.broken_ring)
        if answer.broken_ring:
            self.on_broken_ring(answer.broken_ring)
        if answer.server_args:
            self.on_server_args(list(answer.server_args))
        self.on_servers(answer.newest_server)
        if answer.stopping:
            self.stopping.set()
        if answer.drain:
            self.draining.set()
        if not answer.known:
            self.lost.set()

"""A worker's heartbeat: how far the worker is, told each second, and the answer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
# Metrics of different names that a heartbeat tells.
_MOST_VALUES = 100


@dataclass
class WorkerStatus:
    """What a worker tells with each heartbeat; written by the training loop."""

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
    """Of the whole pass, all epochs; 0: not known."""
    left_out: int = 0
    """Of the records up to ``position``: those that gave no gradient."""
    damaged: int = 0
    """Samples that cannot be read, left out in a ring; of leased tasks a report tells them."""
    epoch: int = 0
    """Of a script: its epochs that are over."""
    epochs: int = 0
    """So many there will be; 0: the script did not say."""
    records_before: int = 0
    """Of passes before this one."""
    records_to_come: int = 0
    """Of passes after this one, as far as the script said."""
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


class Heartbeat:
    """A thread that tells the master every second that this worker lives, and hears of its fate.

    ``draining`` is set when the worker is to finish what it does and leave; ``lost`` when the
    master gave it up, or is itself gone.

    ``stopping`` is set when the user stops the job, so that all workers leave.

    ``on_broken_ring`` is called (in this thread) with the number up to which rings have lost a
    member; ``stale_ring`` is the newest ring that is to be left after a step.
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
        self.stale_ring = 0
        self._contact = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begins."""
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
        now = self._progress
        values = now.take_values()
        request = pb.HeartbeatRequest(
            worker_id=self._worker_id,
            steps=now.steps,
            records=now.records,
            loss=values.get("loss", math.nan),
            version=now.version,
            phase=now.phase,
            ring=now.ring,
            position=now.position,
            pass_records=now.pass_records,
            pass_index=now.pass_index,
            epoch=now.epoch,
            epochs=now.epochs,
            records_before=now.records_before,
            records_to_come=now.records_to_come,
            logged=values,
            left_out=now.left_out,
            damaged=now.damaged,
        )
        sent = time.monotonic()
        try:
            answer = self._master.call("Heartbeat", request, timeout_s=5)
        except grpc.RpcError as error:
            # Not fatal by itself: training goes on, on the leases that are held.
            log.debug("heartbeat: %s", error.code())
            return
        self._contact = sent
        self.stale_ring = max(self.stale_ring, answer.stale_ring, answer.broken_ring)
        if answer.broken_ring:
            self.on_broken_ring(answer.broken_ring)
        if answer.stopping:
            self.stopping.set()
        if answer.drain:
            self.draining.set()
        if not answer.known:
            self.lost.set()

"""What a worker tells with its heartbeats."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from tests.waiting import HANG_S
from torch_edl.master_client.heartbeat import WorkerStatus


@pytest.fixture
def _eager_threads() -> object:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_eager_threads")
def test_no_value_is_lost_between_the_loop_and_the_heartbeat() -> None:
    progress, over = WorkerStatus(), threading.Event()
    sums = []

    def take() -> None:
        while not over.is_set():
            sums.extend(progress.take_values().values())
        sums.extend(progress.take_values().values())

    heartbeats = [threading.Thread(target=take) for _ in range(2)]
    for heartbeat in heartbeats:
        heartbeat.start()
    for step in range(20_000):
        progress.note({f"loss-{step}": 1.0})
    over.set()
    for heartbeat in heartbeats:
        heartbeat.join()
    assert sums == [1.0] * len(sums)
    assert sums


class OnGpu:
    """A value that can be read once the GPU has computed it."""

    def __init__(self, value: float, error: Exception | None = None) -> None:
        self._value, self._error = value, error
        self.computed = threading.Event()

    def __float__(self) -> float:
        assert self.computed.wait(HANG_S)
        if self._error is not None:
            raise self._error
        return self._value


def test_no_heartbeat_waits_for_a_value_on_a_gpu() -> None:
    """The GPU may wait for a lost member of the ring, of which the next heartbeat tells."""
    progress, loss = WorkerStatus(), OnGpu(2.0)
    progress.note({"loss": loss})
    assert progress.take_values() == {}
    progress.note({"loss": 4.0})
    assert progress.take_values() == {}
    loss.computed.set()
    while not (found := progress.take_values()):
        pass
    assert found == {"loss": 2.0}
    assert progress.take_values() == {"loss": 4.0}


def test_values_that_a_gpu_could_not_compute_end_no_heartbeat() -> None:
    progress, loss = WorkerStatus(), OnGpu(0.0, RuntimeError("CUDA error"))
    loss.computed.set()
    progress.note({"loss": loss})
    assert progress.take_values() == {}
    progress.note({"loss": 4.0})
    assert progress.take_values() == {"loss": 4.0}


def test_the_longest_time_without_a_step_since_the_last_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(
        "torch_edl.master_client.heartbeat.time", SimpleNamespace(monotonic=lambda: now)
    )
    progress = WorkerStatus()
    assert progress.standstill(90.0, now) is None, "no step was made yet"

    def standstill(contact: float) -> tuple[float, float]:
        found = progress.standstill(contact, now)
        assert found is not None
        return found.began_s, found.ended_s

    for at in (100.0, 101.0, 108.0, 109.0):
        now = at
        progress.stepped(int(at))
    now = 110.0
    assert standstill(50.0) == (9.0, 2.0)
    assert standstill(105.0) == (5.0, 2.0), "the rest was before the last answer"
    now = 120.0
    assert standstill(50.0) == (11.0, 0.0)
    progress.answered(120.0)
    now = 121.0
    progress.stepped(110)
    now = 121.5
    assert standstill(120.0) == (1.5, 0.5)

"""What a worker tells with its heartbeats."""

from __future__ import annotations

import sys
import threading

import pytest

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

    heartbeat = threading.Thread(target=take)
    heartbeat.start()
    for step in range(20_000):
        progress.note({f"loss-{step}": 1.0})
    over.set()
    heartbeat.join()
    assert sums == [1.0] * len(sums)
    assert sums

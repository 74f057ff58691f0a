"""Workers that are slower than the others, as on crowded machines, are named and replaced."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import TASKS, ModelJob, send
from tests.faults.ring_jobs import RingJob

RECORDS = 40_000
CYCLE_S = 0.5


class Crowded:
    """Lets a process run for a tenth of each half second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            send(self._pid, signal.SIGSTOP)
            self._over.wait(0.9 * CYCLE_S)
            send(self._pid, signal.SIGCONT)
            self._over.wait(0.1 * CYCLE_S)


@pytest.mark.slow
def test_a_slow_worker_is_named_and_replaced(start_job: Callable[..., ModelJob]) -> None:
    flags = ["--workers", "3", "--ps", "1", "--no-shuffle", "--replace-slow", "--check-machine"]
    flags += TASKS
    job = start_job(RECORDS, *flags, delay_s=0.05)
    job.wait_for(lambda: sum(p.records > 0 for p in job.status().processes) == 3, 120)
    victim = next(p for p in job.status().processes if (p.role, p.id) == ("worker", 1))

    def said(text: str) -> bool:
        return any(text in event.text for event in job.status().events)

    with Crowded(victim.pid):
        job.wait_for(lambda: said("worker-1 is slow: "), 120)
        job.wait_for(lambda: said("; it is replaced"))
        job.wait_for(lambda: victim.pid not in job.pids("worker"))
    job.wait_for(lambda: len(job.running("worker")) == 3)
    job.check(rolled_back=0)


@pytest.mark.slow
def test_a_slow_member_of_a_ring_is_named_and_replaced(tmp_path: Path) -> None:
    """All members make the same number of steps a second."""
    model = tmp_path / "model.py"
    text = Path(__file__).with_name("counting_ring_model.py").read_text()
    mine = 'DELAY_S *= 5 if os.environ["TORCH_EDL_PROCESS"] == "worker-1" else 1\n'
    model.write_text(text.replace("\n\nclass Count(", f"\nimport os\n{mine}\nclass Count(", 1))
    flags = ["--workers", "3", "--replace-slow"]
    with contextlib.closing(RingJob(tmp_path, model, *flags, delay_s=0.1, records=9600)) as job:

        def said(text: str) -> bool:
            return any(text in event.text for event in job.status().events)

        job.wait_for(lambda: said("worker-1 is slow: "), 170)
        job.wait_for(lambda: said("; it is replaced"))
        job.wait_for(lambda: said("ended with exit code 0, as asked"))
        job.wait_for(lambda: job.rings()[-1:] == [3] and len(job.rings()) > 2, 120)
        job.check()
        assert job.rolled_back() == 0

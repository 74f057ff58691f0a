"""The page of a job that runs, in a real Chromium."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.chromium import Chromium
from tests.faults.conftest import TASKS, ModelJob
from tests.place import EDL


@pytest.fixture
def chromium() -> Iterator[Chromium]:
    browser = Chromium()
    yield browser
    browser.close()


def test_a_kill_is_shown(start_job: Callable[..., ModelJob], chromium: Chromium) -> None:
    """The page of a running job shows a kill and its cost, and the end of the job."""
    flags = ["--workers", "2", "--ps", "2", "--task-timeout", "20"]
    # Servers show rates only while workers call them: that takes longer than the page does to open.
    job = start_job(1000, *flags, *TASKS, delay_s=0.04)
    job.wait_for(lambda: job.done() > 0)
    words = [*EDL, "dashboard", job.name]
    with subprocess.Popen(words, env=job.env, stdout=subprocess.PIPE, text=True) as dashboard:
        try:
            assert dashboard.stdout is not None
            chromium.show(1400)
            chromium.open(dashboard.stdout.readline().strip())
            chromium.wait_for("document.querySelector('#state').textContent == 'running'")
            chromium.wait_for("document.querySelectorAll('#worker-table tbody tr').length == 2")
            # Pulls and pushes per second, with their percentiles.
            chromium.wait_for(
                r"/\/s, ≤ .* ms/.test(document.querySelector('#server-table').innerText)"
            )
            chromium.evaluate("byId('frequent').open = true")
            chromium.wait_for("document.querySelectorAll('#frequent-table tbody tr').length > 1")
            # What the worker and its machine use.
            chromium.wait_for(
                r"/\d %, \d+ MB/.test(document.querySelector('#worker-table').innerText)"
            )
            chromium.wait_for(
                r"/% of \d+ CPU/.test(document.querySelector('#machine-table').innerText)"
            )
            pid = job.pids("worker")[0]
            began = time.monotonic()
            os.kill(pid, 9)
            chromium.wait_for("document.querySelectorAll('.death').length == 1")
            shown_s = time.monotonic() - began
            # The data stop at the last record: the worker that holds it turns red before the
            # timeout.
            chromium.wait_for("document.querySelector('#worker-table .bad-text')?.innerText")
            job.end_well()
            chromium.wait_for("document.querySelector('#state').textContent == 'finished'")
            # The next step was made, at the latest after the data continued.
            cost = "store.data.incidents.find(each => each.kind == 'worker_lost').stalled_s"
            chromium.wait_for(f"{cost} !== null")
            status = json.loads((job.folder / "status.json").read_text())
            assert [chromium.evaluate(cost)] == [each["stalled_s"] for each in status["outages"]]
            assert chromium.evaluate("store.data.status.stalled_s") == status["stalled_s"]
            shown = f"document.querySelector('#cost-table').innerText.includes(span({cost}))"
            assert chromium.evaluate(shown)
            assert "none" in chromium.evaluate("document.querySelector('#cost-table').innerText")
            assert "No record was lost" in chromium.evaluate("document.body.innerText")
            assert chromium.errors == []
            assert shown_s < 10  # about a second, but not on a busy machine
        finally:
            dashboard.terminate()
    assert "train/loss" in (job.folder / "history.jsonl").read_text()

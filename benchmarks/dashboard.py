"""The page of ``torch-edl dashboard``: how soon it shows what, and what it costs.

Needs Debian's package ``chromium``. Three parts:

- ``large``: the folder of a simulated job of 1,000 workers, 300 deaths and 100,000 events.
  ``paint_s`` is from the request of a browser that has started to the first content, ``lanes_s`` to
  the lanes of all processes; ``request_ms`` is the CPU time of the command for each later request.
- ``idle``: the CPU time of the command for a day when no page is visible, from one minute without
  a request; and that of the observer ``history``, which records the curves of each job.
- ``kills``: workers and servers of a running job are killed in turns; the seconds from SIGKILL to
  the cross on the page.

    python -m benchmarks.dashboard [--only large] [--kills 6] [--idle-s 60]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import ROOT, report
from tests.chromium import Chromium
from tests.job_folder import SimulatedJob
from torch_edl.config import JobConfig
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.dashboard.recorder import Recorder

_EDL = [sys.executable, "-m", "torch_edl.cli"]
_LANES = "document.querySelectorAll('#lanes rect').length > 20"
_PAINT = "performance.getEntriesByType('paint').at(-1)?.startTime ?? null"
_RESOURCES = "performance.getEntriesByType('resource')"
_DAY_S = 86_400
_DEADLINE_S = 120.0


@contextmanager
def page_of(job: str) -> Iterator[tuple[psutil.Process, str]]:
    """Serve the page of a job; yields the process of the command, and the address."""
    with subprocess.Popen([*_EDL, "dashboard", job], stdout=subprocess.PIPE, text=True) as command:
        try:
            assert command.stdout is not None
            yield psutil.Process(command.pid), command.stdout.readline().strip()
        finally:
            command.terminate()


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process, in seconds."""
    times = process.cpu_times()
    return times.user + times.system


def large(repeat: int) -> dict[str, Any]:
    """Open the page of a large job in new browsers."""
    SimulatedJob("large", workers=1000, servers=8, deaths=300, events=100_000, seconds=3600)
    began = time.monotonic()
    with page_of("large") as (command, url):
        found: dict[str, Any] = {"command_s": round(time.monotonic() - began, 2)}
        found["command_cpu_s"] = cpu_s(command)
        paint_s, lanes_s = [], []
        for _ in range(repeat):
            browser = Chromium()
            began = time.monotonic()
            browser.open(url)
            browser.wait_for(_LANES)
            lanes_s.append(round(time.monotonic() - began, 3))
            browser.wait_for(f"{_PAINT} !== null")
            paint_s.append(round(browser.evaluate(_PAINT) / 1000, 3))
            browser.close()
        browser = Chromium()
        browser.open(url)
        before = cpu_s(command)
        requests = (
            "performance.getEntriesByType('resource').filter(e => /data/.test(e.name)).length"
        )
        browser.wait_for(f"{requests} >= 6", _DEADLINE_S)
        count = browser.evaluate(requests)
        found["request_ms"] = round(1000 * (cpu_s(command) - before) / count, 1)
        browser.close()
    return {**found, "paint_s": paint_s, "lanes_s": lanes_s}


def idle(seconds: float) -> dict[str, Any]:
    """Serve a page that nobody reads, and record a job that nobody looks at."""
    SimulatedJob("quiet")
    with page_of("quiet") as (command, _):
        before = cpu_s(command)
        time.sleep(seconds)
        of_command = (cpu_s(command) - before) / seconds * _DAY_S
    folder = JobFolder("recorded")
    folder.dir.mkdir(parents=True)
    recorder, points = Recorder(""), 20_000
    recorder.begin(JobConfig(name="recorded", model_file="model.py"))
    values = {f"train/{n}": n / 7 for n in range(8)}
    began = time.process_time()
    for at in range(points):
        recorder.scalars(at, float(at), values)
    of_recorder = (time.process_time() - began) / points * _DAY_S
    size = folder.history_file.stat().st_size
    return {
        "command_cpu_s_per_day": round(of_command, 1),
        "recorder_cpu_s_per_day": round(of_recorder, 1),
        "history_mb": round(size / 1e6, 2),
    }


def kills(count: int, folder: Path) -> dict[str, Any]:
    """Kill workers and servers of a job in turns while a page shows it."""
    data = folder / "digits"
    subprocess.run([sys.executable, "examples/mnist/prepare.py", str(data)], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    words = ["run", "examples/mnist/model.py", "--data", f"{data}/train-*.recordio", "--epochs",
             "100000", "--ps", "2", "--workers", "2", "--durability", "journal", "--job-name",
             "killed"]  # fmt: skip
    with subprocess.Popen([*_EDL, *words], cwd=ROOT, stdout=subprocess.DEVNULL) as job:
        try:
            _wait(lambda: len(_running("worker")) == 2 and len(_running("ps")) == 2)
            with page_of("killed") as (_, url):
                browser = Chromium()
                browser.open(url)
                shown_s: dict[str, list[float]] = {"worker": [], "ps": []}
                for number in range(count):
                    role = ("worker", "ps")[number % 2]
                    browser.wait_for(f"document.querySelectorAll('.death').length == {number}")
                    began = time.monotonic()
                    os.kill(_running(role)[0], 9)
                    browser.wait_for(f"document.querySelectorAll('.death').length == {number + 1}")
                    shown_s[role].append(round(time.monotonic() - began, 2))
                    _wait(lambda: len(_running("worker")) == 2 and len(_running("ps")) == 2)
                browser.close()
        finally:
            subprocess.run([*_EDL, "stop", "killed"], check=False, stdout=subprocess.DEVNULL)
            job.wait(_DEADLINE_S)
    return shown_s


def _running(role: str) -> list[int]:
    """Return the pids of the processes of a role that run and exist."""
    found = JobFolder("killed").last_status().get("processes", [])
    return [
        p["pid"] for p in found
        if (p["role"], p["state"]) == (role, "running") and psutil.pid_exists(p["pid"])
    ]  # fmt: skip


def _wait(condition: Any) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the job does not run: see its logs")
        time.sleep(0.1)


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["large", "idle", "kills"], default="")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=6)
    args = parser.parse_args()
    figures: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory(prefix="edl-dashboard-") as name:
        os.environ["TORCH_EDL_HOME"] = name
        if args.only in ("", "large"):
            figures["large"] = large(args.repeat)
            figures["median_lanes_s"] = statistics.median(figures["large"]["lanes_s"])
        if args.only in ("", "idle"):
            figures["idle"] = idle(args.idle_s)
        if args.only in ("", "kills"):
            figures["kills_s"] = kills(args.kills, Path(name))
    report("dashboard", json.loads(json.dumps(figures)))


if __name__ == "__main__":
    main()

"""The longest gap between two steps of a worker around a SIGKILL of the master.

The job of `failover.py` trains small steps on two servers. The master is killed, and the client
starts it again. A task is 8 steps or some 0.2 s of work, and a worker has tasks for ten seconds in
hand. Counted: the seconds until the next master answers, and the longest gap between two steps of a
worker in 8 s from the kill and in 8 s before it.

    python benchmarks/master_restart.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import failover
import grpc
from report import report

SPAN_S = 8.0
"""Before the kill, and after it at least."""


def measure(folder: Path) -> dict[str, Any]:
    """One run with one kill."""
    job = failover.Job(folder, 10, "journal")
    try:
        job.wait_until_filled()
        began = time.time()
        job.wait_for_steps(failover.STEPS, began)
        job.wait_for_steps(1, began + SPAN_S)
        victim = _master(job)
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        while _master(job) in (0, victim):
            time.sleep(0.02)
        answers = time.time()
        job.wait_for_steps(1, max(answers + 1, killed + SPAN_S))
        steps = job.acknowledged().values()
        return {
            "master_away_s": round(answers - killed, 3),
            "longest_gap_before_s": round(max(_gap(t, began, killed) for t in steps), 3),
            "longest_gap_s": round(max(_gap(t, killed, time.time()) for t in steps), 3),
            "same_workers": len(steps) == 2,
            "rolled_back": job.status().rolled_back.times,
        }
    finally:
        job.close()


def _master(job: failover.Job) -> int:
    """The pid of the master that answers; 0: none does."""
    try:
        return next(p.pid for p in job.status().processes if p.role == "master")
    except (OSError, ValueError, grpc.RpcError):
        return 0


def _gap(times: list[float], begin: float, end: float) -> float:
    """The longest gap that overlaps a span of time."""
    pairs = itertools.pairwise(times)
    return max(b - a for a, b in pairs if b > begin and a < end)


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    runs = []
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory(prefix="master-restart-") as name:
            runs.append(measure(Path(name)))
    report(
        "master_restart",
        {
            "runs": runs,
            **{
                key: statistics.median(run[key] for run in runs)
                for key in ("master_away_s", "longest_gap_before_s", "longest_gap_s")
            },
        },
    )


if __name__ == "__main__":
    main()

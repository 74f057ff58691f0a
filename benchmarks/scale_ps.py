"""How long workers wait while the model of a job moves to another number of servers.

The job of benchmarks/failover.py, with two workers, fills a table of the given size on two servers,
and then trains small steps, each of which uses all servers. Two servers become three, and three
become two again. Counted, in seconds after each request: when all new servers listened, and the
longest gap between two steps of the slower worker; beside it, its longest gap before the request.

    python benchmarks/scale_ps.py [--megabytes 100] [--durability checkpoint] [--repeat 3]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from failover import STEPS, Job
from report import report

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

_LIMIT_S = 120.0


def measure(folder: Path, megabytes: int, durability: str) -> dict[str, Any]:
    """One run, there and back."""
    job = Job(folder, megabytes // 2, durability)
    try:
        job.wait_until_filled()
        before = job.wait_for_steps(STEPS, time.time())
        more, fewer = _scale(job, folder, 3), _scale(job, folder, 2)
        return {
            "longest_gap_before_s": _longest(before),
            "from_2_to_3": more,
            "from_3_to_2": fewer,
            "rolled_back": job.status().rolled_back.times,
        }
    finally:
        job.close()


def _scale(job: Job, folder: Path, servers: int) -> dict[str, float]:
    where = json.loads((folder / "home" / "jobs" / "failover" / "master.json").read_text())
    stub = Stub(services.CONTROL, where["address"], where["token"])
    began = time.time()
    try:
        stub.call(pb.ScaleRequest(servers=servers), timeout_s=10)
    finally:
        stub.close()
    while _running(job) != servers:
        if time.time() > began + _LIMIT_S:
            raise SystemExit(f"the job did not get {servers} servers within {_LIMIT_S:g} s")
        time.sleep(0.02)
    listen = time.time()
    job.wait_for_steps(STEPS, listen)
    after = {pid: [t for t in times if t > began] for pid, times in job.acknowledged().items()}
    return {"listen_s": round(listen - began, 3), "longest_gap_s": _longest(after)}


def _running(job: Job) -> int:
    """The servers, if none of them starts or ends."""
    states = [p.state for p in job.status().processes if p.role == "ps" and p.state != "exited"]
    return len(states) if set(states) == {"running"} else 0


def _longest(times: dict[int, list[float]]) -> float:
    return round(max(b - a for each in times.values() for a, b in itertools.pairwise(each)), 3)


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--durability", default="checkpoint")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    runs = []
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory(prefix="scale-ps-") as name:
            runs.append(measure(Path(name), args.megabytes, args.durability))
    moves = ("from_2_to_3", "from_3_to_2")
    report(
        "scale_ps",
        {
            "durability": args.durability,
            "table_mb": args.megabytes,
            "runs": runs,
            **{
                f"{move}_gap_s": statistics.median(run[move]["longest_gap_s"] for run in runs)
                for move in moves
            },
        },
    )


if __name__ == "__main__":
    main()

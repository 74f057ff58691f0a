"""From SIGKILL of a parameter server to the first step that uses the shard again.

A job with two servers and two workers fills a table until each server has a shard of the given
size, and then trains small steps, each of which pulls from and pushes to both servers. One server
is killed. Its successor replays the journal (or asks its peer); no step is lost or trained twice.
Counted, in seconds after the kill: when the master noticed it, when the successor listened, and the
next step of the slower worker after its longest gap. The gaps are the stall of the workers, before
the kill and after it.

    python benchmarks/failover.py [--megabytes 100 1000] [--durability journal] [--repeat 3]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from report import ROOT, report

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

DIM = 64
IDS = 64  # of a record
BATCH = 1024
STEPS = 40  # before and after the kill
_ROW_BYTES = 4 * DIM
_LIMIT_S = 600.0

MODEL = f"""
import os, sys, time
import torch
from torch import nn
import torch_edl

FILL, OUT = int(sys.argv[1]), sys.argv[2]
IDS = torch.arange({IDS})

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch_edl.nn.Embedding(None, {DIM}, initializer="zeros")
        self.scale = nn.Parameter(torch.ones({DIM}))

    def forward(self, ids):
        return (self.rows(ids).sum(1) * self.scale).sum(1)

def model():
    return Net()

def loss(labels, predictions):
    return -predictions.mean()

def optimizer(params):
    return torch.optim.SGD(params, lr=1e-6)  # no benchmark of many steps overflows

def feed(records, mode, metadata):
    n = torch.tensor(records.column("n").to_numpy())
    # The first records have ids of their own; all later ones share {BATCH} of them.
    first = torch.where(n < FILL, n * {IDS}, n % {BATCH // IDS} * {IDS})
    return first.unsqueeze(1) + IDS, n

class Note:
    def on_batch_end(self, steps, loss):
        with open(os.path.join(OUT, str(os.getpid())), "a") as file:
            file.write(f"{{time.time()}}\\n")

def callbacks():
    return [Note()]
"""


class Job:
    """A running ``torch-edl run`` of the model above."""

    def __init__(self, folder: Path, megabytes: int, durability: str) -> None:
        self.fill = 2 * megabytes * 10**6 // _ROW_BYTES // IDS // BATCH * BATCH
        self.steps = folder / "steps"
        self.steps.mkdir()
        (folder / "model.py").write_text(MODEL, encoding="utf-8")
        data = folder / "data.parquet"
        pq.write_table(pa.table({"n": range(self.fill + 4000 * BATCH)}), data)
        self.env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home")}
        self._where = folder / "home" / "jobs" / "failover" / "master.json"
        words = [
            sys.executable, "-m", "torch_edl.cli", "run", str(folder / "model.py"),
            "--data", str(data), "--job-name", "failover", "--no-shuffle",
            "--batch-size", str(BATCH), "--records-per-task", str(8 * BATCH),
            "--workers", "2", "--ps", "2", "--durability", durability,
            "--", str(self.fill), str(self.steps),
        ]  # fmt: skip
        with open(folder / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(words, env=self.env, cwd=ROOT, stdout=log, stderr=log)
        self._deadline = time.monotonic() + _LIMIT_S
        self._log = folder / "log"

    def status(self) -> pb.GetStatusResponse:
        """Return the status from the master."""
        where = json.loads(self._where.read_text())
        stub = Stub(services.CONTROL, where["address"], where["token"])
        try:
            status: pb.GetStatusResponse = stub.call(pb.GetStatusRequest(), timeout_s=10, wait=True)
            return status
        finally:
            stub.close()

    def acknowledged(self) -> dict[int, list[float]]:
        """Worker to the times of its steps."""
        return {
            int(file.name): [float(line) for line in file.read_text().split()]
            for file in self.steps.iterdir()
        }

    def wait_for_steps(self, count: int, after: float) -> dict[int, list[float]]:
        """Wait until each worker has made a number of steps after a time, and return the steps."""
        while True:
            found = {
                pid: [t for t in times if t > after] for pid, times in self.acknowledged().items()
            }
            if len(found) == 2 and all(len(times) >= count for times in found.values()):
                return found
            if time.monotonic() > self._deadline or self.process.poll() is not None:
                raise SystemExit(f"the job did not come so far:\n{self._log.read_text()}")
            time.sleep(0.02)

    def wait_until_filled(self) -> None:
        """Until every row is there."""
        while True:
            if self._where.exists():
                try:
                    if self.status().records.done >= self.fill:
                        return
                except (OSError, ValueError, grpc.RpcError):
                    pass
            if time.monotonic() > self._deadline or self.process.poll() is not None:
                raise SystemExit(f"the job did not come so far:\n{self._log.read_text()}")
            time.sleep(0.1)

    def close(self) -> None:
        """Ends the job at once."""
        # A shell has what it starts with `&` ignore SIGINT, and a job heeds that.
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def measure(folder: Path, megabytes: int, durability: str) -> dict[str, Any]:
    """One run with one death."""
    job = Job(folder, megabytes, durability)
    try:
        job.wait_until_filled()
        before = job.wait_for_steps(STEPS, time.time())
        victim = next(p for p in job.status().processes if p.role == "ps" and p.state == "running")
        killed = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        # The answer to a push that the server had before may still come.
        after = job.wait_for_steps(STEPS, killed)
        gaps = {pid: _longest([killed, *times]) for pid, times in after.items()}
        events = [event for event in job.status().events if event.time >= killed - 0.05]
        gone = next(e.time for e in events if e.kind == "server_lost")
        ready = next(e.time for e in events if e.kind == "servers_ready")
        return {
            "noticed_s": round(gone - killed, 3),
            "listens_s": round(ready - killed, 3),
            "next_step_s": round(max(end - killed for _, end in gaps.values()), 3),
            "longest_gap_before_s": round(max(_longest(t)[0] for t in before.values()), 3),
            "longest_gap_s": round(max(gap for gap, _ in gaps.values()), 3),
            "rolled_back": job.status().rolled_back.times,
        }
    finally:
        job.close()


def _longest(times: list[float]) -> tuple[float, float]:
    """The longest gap between two times, and its end."""
    return max((end - start, end) for start, end in itertools.pairwise(times))


def main() -> None:
    """Prints one JSON line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--durability", default="journal")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    for megabytes in args.megabytes:
        runs = []
        for _ in range(args.repeat):
            with tempfile.TemporaryDirectory(prefix="failover-") as name:
                runs.append(measure(Path(name), megabytes, args.durability))
        report(
            "failover",
            {
                "durability": args.durability,
                "shard_mb": megabytes,
                "runs": runs,
                "next_step_s": statistics.median(run["next_step_s"] for run in runs),
            },
        )


if __name__ == "__main__":
    main()

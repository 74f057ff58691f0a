"""From SIGKILL of a worker to the first step of its replacement, with and without a spare.

A job with two workers trains small steps, on servers or in a ring, until a spare waits. One worker
is killed. Its replacement is a new process, or the spare. Counted, in seconds after the kill: the
first step of the replacement, and the next step of the other worker. A model file that imports
nothing but torch is the best case of a new process: each further library adds to its time.

    python benchmarks/replace.py [--strategies ps allreduce] [--repeat 5]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from report import ROOT, report

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

BATCH = 64
_LIMIT_S = 300.0

MODEL = """
import os, sys, time
import torch
from torch import nn
import torch_edl

STRATEGY, OUT = sys.argv[1:]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        on_servers = STRATEGY == "ps"
        self.rows = torch_edl.nn.Embedding(None, 16) if on_servers else nn.Embedding(1000, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, n):
        return self.out(self.rows(n % 1000)).squeeze(1)

def model():
    return Net()

def loss(labels, predictions):
    return nn.functional.mse_loss(predictions, labels)

def optimizer(params):
    return torch.optim.SGD(params, lr=1e-3)

def feed(records, mode, metadata):
    n = torch.tensor(records.column("n").to_numpy())
    return n, torch.zeros(len(n))

class Note:
    def on_batch_end(self, steps, loss):
        with open(os.path.join(OUT, str(os.getpid())), "a") as file:
            file.write(f"{time.time()}\\n")
        time.sleep(0.01)  # the computation of a larger model, which leaves a core to others

def callbacks():
    return [Note()]
"""


class Job:
    """A running ``torch-edl run`` of the model above."""

    def __init__(self, folder: Path, strategy: str, spares: int) -> None:
        self.steps = folder / "steps"
        self.steps.mkdir()
        (folder / "model.py").write_text(MODEL, encoding="utf-8")
        data = folder / "data.parquet"
        table = pa.table({"n": range(100_000 * BATCH)})
        pq.write_table(table, data, row_group_size=1000 * BATCH)
        env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home")}
        self._where = folder / "home" / "jobs" / "replace" / "master.json"
        self._log = folder / "log"
        words = [
            sys.executable, "-m", "torch_edl.cli", "run", str(folder / "model.py"),
            "--data", str(data), "--job-name", "replace", "--batch-size", str(BATCH),
            "--strategy", strategy, "--workers", "2", "--spares", str(spares),
            "--", strategy, str(self.steps),
        ]  # fmt: skip
        with open(self._log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(words, env=env, cwd=ROOT, stdout=log, stderr=log)

    def running(self, role: str) -> list[int]:
        """Pids of the processes of a role that are there; none while no master answers."""
        try:
            where = json.loads(self._where.read_text())
        except (OSError, ValueError):
            return []
        stub = Stub(services.CONTROL, where["address"], where["token"])
        try:
            status = stub.call(pb.GetStatusRequest(), timeout_s=10)
        except grpc.RpcError:
            return []
        finally:
            stub.close()
        return [p.pid for p in status.processes if p.role == role and p.state == "running"]

    def acknowledged(self) -> dict[int, list[float]]:
        """Pid of a worker to the times of its steps."""
        return {
            int(file.name): [float(line) for line in file.read_text().split()]
            for file in self.steps.iterdir()
        }

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until it is true."""
        deadline = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the job did not come so far:\n{self._log.read_text()}")
            time.sleep(0.02)

    def close(self) -> None:
        """Ends it."""
        # A shell has what it starts with `&` ignore SIGINT, and a job heeds that.
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def measure(folder: Path, strategy: str, spares: int) -> dict[str, float]:
    """One run with one kill."""
    job = Job(folder, strategy, spares)
    try:
        job.wait_for(lambda: len(job.acknowledged()) == 2 and len(job.running("spare")) == spares)
        began = time.time()
        job.wait_for(lambda: all(max(t) > began + 2 for t in job.acknowledged().values()))
        victim, other = job.running("worker")
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        job.wait_for(lambda: len(job.acknowledged()) == 3)
        job.wait_for(lambda: max(job.acknowledged()[other]) > killed + 0.5)
        steps = job.acknowledged()
        first = next(times[0] for pid, times in steps.items() if pid not in (victim, other))
        return {
            "first_step_s": round(first - killed, 3),
            "others_next_step_s": round(next(t for t in steps[other] if t > killed) - killed, 3),
        }
    finally:
        job.close()


def main() -> None:
    """Prints a JSON line for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", default=["ps", "allreduce"])
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    for strategy in args.strategies:
        runs: dict[int, list[dict[str, float]]] = {0: [], 1: []}
        for _ in range(args.repeat):
            for spares, found in runs.items():
                with tempfile.TemporaryDirectory(prefix="replace-") as name:
                    found.append(measure(Path(name), strategy, spares))
        new, spare = (statistics.median(r["first_step_s"] for r in runs[n]) for n in (0, 1))
        report(
            "replace",
            {
                "strategy": strategy,
                "load": os.getloadavg()[0],
                "runs": {"without": runs[0], "with": runs[1]},
                "without_spare_s": new,
                "with_spare_s": spare,
                "times_faster": round(new / spare, 1),
            },
        )


if __name__ == "__main__":
    main()

"""From SIGKILL of a worker to the first step of its replacement.

Two workers of a job train small steps, on servers or in a ring. One worker is killed, and its node
forks another one. Counted, in seconds after the kill: the first step of the replacement, and the
next step of the other worker. A model file that imports nothing but torch is the best case: the
replacement imports each further library itself.

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

    def __init__(self, folder: Path, strategy: str) -> None:
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
            "--strategy", strategy, "--workers", "2",
            "--", strategy, str(self.steps),
        ]  # fmt: skip
        with open(self._log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(words, env=env, cwd=ROOT, stdout=log, stderr=log)

    def workers(self) -> list[int]:
        """Pids of the workers that run; none while no master answers."""
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
        return [p.pid for p in status.processes if p.role == "worker" and p.state == "running"]

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


def measure(folder: Path, strategy: str) -> dict[str, float]:
    """One run with one kill."""
    job = Job(folder, strategy)
    try:
        job.wait_for(lambda: len(job.acknowledged()) == 2)
        began = time.time()
        job.wait_for(lambda: all(max(t) > began + 2 for t in job.acknowledged().values()))
        victim, other = job.workers()
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
        runs = []
        for _ in range(args.repeat):
            with tempfile.TemporaryDirectory(prefix="replace-") as name:
                runs.append(measure(Path(name), strategy))
        report(
            "replace",
            {
                "strategy": strategy,
                "load": os.getloadavg()[0],
                "runs": runs,
                "first_step_s": statistics.median(run["first_step_s"] for run in runs),
            },
        )


if __name__ == "__main__":
    main()

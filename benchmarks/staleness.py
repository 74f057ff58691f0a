"""What ``--staleness`` costs in loss and gains in rate, by optimizer and number of workers.

    python -m benchmarks.staleness [--records 200000] [--workers 1 2 4] [--repeat 3]

Each job trains DeepFM (`staleness_model.py`) for one epoch on 2 servers and is evaluated on
held-out records. Runs of one optimizer and number of workers are interleaved, so that a slow minute
of the machine hits each staleness alike. The loss is the mean of the runs, the rate their median.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.deepfm_data import make_data
from benchmarks.report import ROOT, report

OPTIMIZERS = {"SGD": 0.5, "Adagrad": 0.05, "Adam": 0.002}
"""With their learning rates."""
STALENESS = (0, 1, 3)
BATCH, IDS = 512, 1_000


def train(
    data: Path, optimizer: str, rate: float, workers: int, staleness: int, seed: int
) -> tuple[float, float]:
    """One job: its loss on held-out records, and records a second; NaN and 0 if it diverged."""
    with tempfile.TemporaryDirectory() as name:
        summary, model = Path(name) / "summary.json", ROOT / "benchmarks" / "staleness_model.py"
        command = [
            sys.executable, "-m", "torch_edl.cli", "run", str(model),
            "--data", str(data / "train-*.parquet"), "--eval-data", str(data / "eval-*.parquet"),
            "--ps", "2", "--workers", str(workers), "--batch-size", str(BATCH),
            "--worker-threads", "1", "--seed", str(seed), "--staleness", str(staleness),
            "--summary", str(summary), "--", optimizer, str(rate),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True)
        if done.returncode:
            if "the loss is nan" in done.stderr or "the loss is inf" in done.stderr:
                return math.nan, 0.0
            raise SystemExit(done.stderr)
        told = json.loads(summary.read_text(encoding="utf-8"))
    return told["evaluations"][-1]["metrics"]["loss"], told["samples_per_s"]


def _shown(loss: float) -> float | None:
    """A loss as JSON can say it; None if it is not finite."""
    return round(loss, 4) if math.isfinite(loss) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=OPTIMIZERS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rate", type=float, help="learning rate of all optimizers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        make_data(data, args.records, ids=IDS)
        for optimizer, workers in itertools.product(args.optimizers, args.workers):
            rate = args.rate or OPTIMIZERS[optimizer]
            load = os.getloadavg()[0]
            runs: dict[int, list[tuple[float, float]]] = {each: [] for each in STALENESS}
            for seed, staleness in itertools.product(range(args.repeat), STALENESS):
                runs[staleness].append(train(data, optimizer, rate, workers, staleness, seed))
            figures: dict[str, Any] = {
                str(staleness): {
                    "loss": _shown(statistics.mean(loss for loss, _ in made)),
                    "losses": [_shown(loss) for loss, _ in made],
                    "samples_per_s": round(statistics.median(rate for _, rate in made)),
                }
                for staleness, made in runs.items()
            }
            setting = {"optimizer": optimizer, "learning_rate": rate, "workers": workers}
            setting |= {"records": args.records, "batch": BATCH, "load_before": load}
            report("staleness", {**setting, "staleness": figures})


if __name__ == "__main__":
    main()

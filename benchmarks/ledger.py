"""The cost of the ledger of tasks, which `torch-edl audit` reads.

    python benchmarks/ledger.py [--records 400000] [--batch 512] [--records-per-task 2048]

Trains DeepFM on 2 servers with 2 workers, in turns with the ledger and with one that records
nothing. A package that is found before torch-edl offers both, and measures the CPU of the thread
within each method of the ledger; the master writes it when it ends. CPU is that of processes, so
load on the machine changes it little; wall time is not used.

Prints one JSON line: CPU of the ledger per task, its share of the CPU of the master and of all
processes of the job, bytes per task and per minibatch, and the CPU of all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import deepfm_data
from report import report

SERVERS, WORKERS = 2, 2
_HERE = Path(__file__).parent


def _offer(folder: Path) -> None:
    """Writes what an installed package has, with the entry points of a ledger."""
    info = folder / "ledger_meter-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger-meter\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch_edl.ledgers]\ntasks = ledger_meter:Ledger\nfile = ledger_meter:File\n"
    )


def run(data: Path, options: argparse.Namespace, *, records_tasks: bool) -> dict[str, Any]:
    """Train once; return tasks, minibatches, bytes, and seconds of CPU."""
    with tempfile.TemporaryDirectory(prefix="ledger-") as name:
        folder = Path(name)
        _offer(folder)
        told, summary = folder / "told.json", folder / "summary.json"
        files = map(str, sorted(data.glob("train-*.parquet")))
        words = ["run", str(deepfm_data.EXAMPLE / "model.py"), "--data", *files]
        words += ["--ps", str(SERVERS), "--workers", str(WORKERS)]
        words += ["--batch-size", str(options.batch), "--job-name", "ledger"]
        words += ["--records-per-task", str(options.records_per_task), "--summary", str(summary)]
        words += ["--", "--dim", str(deepfm_data.DIM)]
        environment = {
            **os.environ,
            "TORCH_EDL_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(folder), str(_HERE / "plugins")]),
            "LEDGER_METER": str(told),
            "LEDGER_RECORDS": "1" if records_tasks else "",
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "torch_edl.cli", *words]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        job = folder / "home" / "jobs" / "ledger"
        file = job / "tasks.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        status = json.loads((job / "status.json").read_text())
        return {
            **json.loads(told.read_text()),
            "job_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "records": status["records"]["done"],
            "tasks": status["tasks"]["done"],
            "steps": status["steps"],
            "lines": len(lines),
            "bytes": file.stat().st_size if lines else 0,
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=400_000, help="records (default 400,000)")
    parser.add_argument("--batch", type=int, default=512, help="of a minibatch (default 512)")
    parser.add_argument("--records-per-task", type=int, default=2048, help="(default 2,048)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default 3)")
    options = parser.parse_args()
    data = deepfm_data.ROOT / "build" / "benchmarks" / f"deepfm-{options.records}"
    deepfm_data.make_data(data, options.records)
    load = os.getloadavg()[0]
    runs: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for _ in range(options.repeat):
        for records_tasks, found in runs.items():
            found.append(run(data, options, records_tasks=records_tasks))
    on = runs[True]
    one = on[0]
    median = statistics.median
    report(
        "ledger",
        {
            "records": one["records"],
            "tasks": one["tasks"],
            "steps": one["steps"],
            "load_before": round(load, 1),
            "ledger_us_per_task": round(median(r["ledger_s"] / r["tasks"] for r in on) * 1e6, 1),
            "of_master": round(median(r["ledger_s"] / r["master_s"] for r in on), 5),
            "of_job": round(median(r["ledger_s"] / r["job_s"] for r in on), 6),
            "ns_per_sample": round(median(r["ledger_s"] / r["records"] for r in on) * 1e9, 1),
            "bytes_per_task": round(median(r["bytes"] / r["tasks"] for r in on), 1),
            "bytes_per_step": round(median(r["bytes"] / r["steps"] for r in on), 1),
            "master_s": {k: [round(r["master_s"], 3) for r in runs[v]] for k, v in _NAMES.items()},
            "job_us_per_sample": {
                k: [round(r["job_s"] / r["records"] * 1e6, 2) for r in runs[v]]
                for k, v in _NAMES.items()
            },
        },
    )


_NAMES = {"with": True, "without": False}


if __name__ == "__main__":
    main()

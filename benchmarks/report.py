"""Prints the figures of a benchmark with the machine, and appends them to its results."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def report(name: str, figures: dict[str, Any]) -> None:
    """Prints one JSON line and appends it to ``results/NAME.jsonl``."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in cpu if line.startswith("model name")]
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": names[0] if names else platform.processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in ("torch", "grpcio")},
    }
    line = json.dumps(
        {
            "benchmark": name,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **figures,
            "machine": machine,
            "commit": commit.stdout.strip(),
        }
    )
    print(line, flush=True)
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{name}.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")

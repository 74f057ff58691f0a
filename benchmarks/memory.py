"""Memory of an embedding table that meets ever new ids, with and without its limits.

Ids follow Zipf's law (1.2) without bound, in batches of 4,096. Every batch is pulled and pushed as
by a worker, with Adagrad and 16 elements per row. Each part runs in its own process, and reads the
memory of the process from the kernel before and after.

    python benchmarks/memory.py [--quick]

`mb_per_million`: growth of the process, per million distinct ids that came. `known`: the share of
the ids of the last hundred batches that had a trained row when they came, among the distinct ids
of a batch. `push_us`: a push with its eviction, the median and the longest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from report import report

from torch_edl import _core

BATCH, DIM = 4_096, 16
STD = {"std": 0.01}
PARTS: dict[str, dict[str, Any]] = {
    "unlimited": {},
    "storage_dtype=bf16": {"dtype": "bf16"},
    "storage_dtype=int8": {"dtype": "int8"},
    "min_count=3": {"min_count": 3},
    "max_age=200": {"max_age": 200},
    "min_count=3, max_age=200": {"min_count": 3, "max_age": 200},
    "max_rows=200,000": {"max_rows": 200_000},
    "max_bytes=32 MB": {"max_bytes": 32_000_000},
}


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def batches(number: int) -> Iterator[npt.NDArray[np.int64]]:
    """The distinct ids of each batch, the same for all parts."""
    rng = np.random.default_rng(0)
    for _ in range(number):
        yield np.unique(rng.zipf(1.2, BATCH))


def measure(part: str, number: int) -> dict[str, Any]:
    """Feeds one table."""
    limits = PARTS[part]
    max_age = limits.get("max_age", 0)
    gradient = np.full((BATCH, DIM), 0.01, np.float32)
    known = asked = 0
    times = np.zeros(number)
    before = resident()
    table = _core.Table("t", DIM, "normal", STD, 0, _core.Optimizer("adagrad", {}), **limits)
    for step, ids in enumerate(batches(number), 1):
        if step > number - 100:
            rows = table.pull(ids, read_only=True)
            dtype = limits.get("dtype", "fp32")
            begun = _core.init_rows("t", 0, "normal", STD, ids, DIM, dtype)
            known += int((rows != begun).any(1).sum())
            asked += len(ids)
        table.pull(ids)
        started = time.perf_counter()
        table.push(ids, gradient[: len(ids)], 0.01, step)
        table.evict(step, aged=max_age > 0 and step % (max_age // 4) == 0)
        times[step - 1] = time.perf_counter() - started
    grown = resident() - before
    distinct = len(np.unique(np.concatenate(list(batches(number)))))
    return {
        "distinct": distinct,
        "rows": table.size,
        "counted": table.counted,
        "mb": round(grown / 1e6),
        "mb_per_million": round(grown / distinct),
        "known": round(known / asked, 3),
        "push_us": [round(float(np.median(times)) * 1e6), round(float(times.max()) * 1e6)],
    }


def main() -> None:
    """Measures all parts, each in a process, and reports them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the batches")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    number = 1_000 if args.quick else 10_000
    if args.part:
        sys.stdout.write(json.dumps(measure(args.part, number)))
        return
    figures = {}
    for part in PARTS:
        command = [sys.executable, __file__, "--part", part, *(["--quick"] * args.quick)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        figures[part] = json.loads(done.stdout)
    report("memory", {"batches": number, "parts": figures})


if __name__ == "__main__":
    main()

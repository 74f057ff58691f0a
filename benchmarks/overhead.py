"""Steps per second in steady state: our ring against DistributedDataParallel, our loader against
a DataLoader.

Two workers with a thread each, the same model and batches of the same size, in turn; then one
process with a plain DataLoader and one with `job.loader`. The rate is that of the median of thirty
stretches of steps, after the first quarter. A machine may be slower for a while, so runs alternate,
and medians are compared.

    python benchmarks/overhead.py [--repeat 5]
"""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

import launches
from report import report

_RING = ["--width", "1024", "--layers", "4", "--batch-size", "64", "--steps", "160"]
_LOADER = ["--width", "64", "--layers", "2", "--batch-size", "64", "--steps", "6000"]


def rate(launcher: list[str], mode: str, out: Path, words: list[str]) -> float:
    """Steps per second of one run: of the median stretch of steps."""
    notes = launches.run(launcher, mode, out, *words)
    pid = notes[0].pid
    times = [note.time for note in notes if note.pid == pid]
    length = len(times) // 40
    watermarks = times[len(times) // 4 :: length]
    return length / statistics.median(b - a for a, b in itertools.pairwise(watermarks))


def compare(workers: int, repeat: int) -> dict[str, Any]:
    """Return the rates of all ways, run in turns, and the ratios of their medians."""
    rates: dict[str, list[float]] = {"ddp": [], "ours": [], "plain": [], "alone": []}
    python = [launches.sys.executable]
    with launches.folder() as name:
        for number in range(repeat):
            for mode, launcher, words in (
                ("ddp", launches.torchrun(workers), _RING),
                ("ours", launches.torch_edl(workers), _RING),
                ("plain", python, _LOADER),
                ("alone", python, _LOADER),
            ):
                out = Path(name) / f"{mode}-{number}"
                rates[mode].append(round(rate(launcher, mode, out, words), 2))
    median = {mode: statistics.median(found) for mode, found in rates.items()}
    return {
        "workers": workers,
        "steps_per_s": rates,
        "ring_of_ddp": round(median["ours"] / median["ddp"], 3),
        "loader_of_plain": round(median["alone"] / median["plain"], 3),
    }


def main() -> None:
    """Prints one JSON line."""
    args = launches.arguments(__doc__, workers=2, repeat=5)
    report("overhead", compare(args.workers, args.repeat))


if __name__ == "__main__":
    main()

"""How long the others stall when a worker joins a ring.

Three workers train 64 MB of parameters; `torch-edl scale` asks for a fourth. It imports torch,
builds the model and warms up while the others train; then it asks in. The stall is the longest
time between two steps of a process that was there before, around the joiner's first step, less the
median time of a step in the ring that has the joiner: that gap ends with the first such step.

    python benchmarks/resize.py [--workers 3] [--repeat 3]
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import launches
from report import report

_MODEL = ["--width", "2048", "--layers", "4", "--batch-size", "8"]  # 16.8 million parameters
_LIMIT_S = 120.0


def measure(workers: int, out: Path) -> dict[str, float]:
    """One run with one joiner."""
    launcher = launches.torch_edl(workers, "--job-name", "resize")
    process = launches.start(launcher, "ours", out, *_MODEL, "--steps", "100000")
    try:
        _wait(out, lambda notes: len(notes) and notes[-1].step >= 20)
        subprocess.run(
            [sys.executable, "-m", "torch_edl.cli", "scale", "resize", "--workers",
             str(workers + 1)],
            env={**os.environ, "TORCH_EDL_HOME": f"{out}.home"}, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        asked = time.time()
        _wait(out, lambda notes: len({n.pid for n in notes}) > workers)
        first = {note.pid: note.time for note in reversed(launches.notes(out))}
        joined = min(at for at in first.values() if at > asked)
        _wait(out, lambda notes: notes[-1].time > joined + 5)
    finally:
        process.terminate()
        process.wait()
    notes = launches.notes(out)
    there = {n.pid for n in notes if n.time < asked}
    gaps, before, after = [], [], []
    for pid in there:
        times = [n.time for n in notes if n.pid == pid]
        before += [b - a for a, b in itertools.pairwise(times) if b < joined - 3]
        after += [b - a for a, b in itertools.pairwise(times) if a > joined + 0.5]
        gaps.append(max(b - a for a, b in itertools.pairwise(times) if joined - 3 < b < joined + 1))
    return {
        "stall_s": round(max(gaps) - statistics.median(after), 3),
        "longest_gap_s": round(max(gaps), 3),
        "step_before_s": round(statistics.median(before), 3),
        "step_after_s": round(statistics.median(after), 3),
        "to_join_s": round(joined - asked, 3),
    }


def _wait(out: Path, condition: object) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition(launches.notes(out)):  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise RuntimeError(Path(f"{out}.log").read_text()[-3000:])
        time.sleep(0.2)


def main() -> None:
    """Prints one JSON line."""
    args = launches.arguments(__doc__, workers=3, repeat=3)
    with launches.folder() as name:
        runs = [measure(args.workers, Path(name) / str(n)) for n in range(args.repeat)]
    report(
        "resize",
        {
            "workers": args.workers,
            "runs": runs,
            "stall_s": statistics.median(run["stall_s"] for run in runs),
        },
    )


if __name__ == "__main__":
    main()

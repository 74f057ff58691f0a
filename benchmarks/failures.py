"""What one failure costs: the stall of the workers, and the records that are trained again.

The counting example with three workers and two servers; `torch-edl chaos` strikes one process, or
several at the same moment, and the verdict says what was rolled back. The stall is the longest time
between two minibatches of a worker that lived before and after, or of any two if all workers died,
less the median time. Afterwards the records are checked.

    python benchmarks/failures.py [--workers 3] [--repeat 3] [--only "worker;server, journal"]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import launches
from report import ROOT, report

_EDL = [sys.executable, "-m", "torch_edl.cli"]
_MODEL = str(Path(__file__).with_name("failures_model.py"))
_EXAMPLE = ROOT / "examples" / "counting"
_RECORDS = 60_000
_LIMIT_S = 120.0
_KEEP = ["--checkpoint-every", "400"]
_JOURNAL = ["--durability", "journal"]
CASES = {
    "worker": ('kill = "worker=1"', []),
    "worker that pauses for 5 s": ('pause = "worker=1:5s"', []),
    "master": ('kill = "master=1"', []),
    "server, checkpoint": ('kill = "ps=1"', []),
    "server, journal": ('kill = "ps=1"', _JOURNAL),
    "server that pauses for 5 s": ('pause = "ps=1:5s"', _JOURNAL),
    "server that hangs, journal": (
        'pause = "ps=1:60s"',
        [*_JOURNAL, "--heartbeat-timeout", "10"],
    ),
    "all servers, journal": ('kill = "ps=2"', _JOURNAL),
    "all but the client, journal": ('kill = "worker=3,ps=2,master=1"', _JOURNAL),
}


def measure(workers: int, fault: str, flags: list[str], folder: Path) -> dict[str, object]:
    """One job with one fault."""
    folder.mkdir(parents=True)
    notes, data, output = folder / "notes", folder / "data", folder / "model"
    notes.mkdir()
    env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    prepare = [sys.executable, str(_EXAMPLE / "prepare.py"), str(data), "--records", str(_RECORDS)]
    subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
    with open(folder / "log", "w") as log:
        job = subprocess.Popen(
            [
                *_EDL, "run", _MODEL, "--data", str(data), "--workers", str(workers), "--ps", "2",
                "--batch-size", "32", "--job-name", "failures", "--output", str(output),
                "--checkpoint-dir", str(folder / "checkpoints"), *_KEEP, *flags,
                "--", str(notes), "--delay", "0.02",
            ],
            env=env, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _LIMIT_S
        while len(launches.notes(notes)) < 150 * workers:
            if time.monotonic() > deadline or job.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-3000:])
            time.sleep(0.2)
        began = time.time()
        (folder / "plan.toml").write_text(f'[[fault]]\n{fault}\nat = "1s"\n')
        chaos = subprocess.run(
            [*_EDL, "chaos", "failures", "--plan", str(folder / "plan.toml"), "--json"],
            env=env, capture_output=True, text=True,
        )  # fmt: skip
        verdict = json.loads(chaos.stdout)
        if job.wait(300) != 0:
            raise RuntimeError((folder / "log").read_text()[-3000:])
    finally:
        job.kill()
        job.wait()
    check = [sys.executable, str(_EXAMPLE / "check.py"), str(output), str(data)]
    exact = subprocess.run(check, stdout=subprocess.DEVNULL).returncode == 0
    found = launches.notes(notes)
    there = {n.pid for n in found if n.time < began} & {n.pid for n in found if n.time > began + 30}
    there = there or {n.pid for n in found if n.time < began} & {found[-1].pid}
    gaps, usual = [], []
    for pid in there:
        times = [n.time for n in found if n.pid == pid]
        pairs = [(a, b - a) for a, b in itertools.pairwise(times)]
        usual += [gap for a, gap in pairs if a < began]
        gaps.append(max(gap for a, gap in pairs if began <= a < began + 20))
    if not gaps:
        pairs = [(a.time, b.time - a.time) for a, b in itertools.pairwise(found)]
        usual = [gap for a, gap in pairs if a < began]
        gaps = [max(gap for a, gap in pairs if began <= a < began + 20)]
    first = {n.pid: n.time for n in reversed(found)}
    new = [at - began - 1 for pid, at in first.items() if at > began]
    return {
        "stall_s": round(max(gaps) - statistics.median(usual), 2),
        "replacement_trains_s": round(min(new), 1) if new else None,
        "records_rolled_back": verdict["rolled_back"]["records"],
        "exact": exact,
        "held": verdict["held"],
    }


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default=";".join(CASES), help="cases, separated by ';'")
    args = parser.parse_args()
    figures: dict[str, object] = {}
    with launches.folder() as name:
        for case in args.only.split(";"):
            fault, flags = CASES[case]
            runs = [
                measure(args.workers, fault, flags, Path(name) / f"{list(CASES).index(case)}-{n}")
                for n in range(args.repeat)
            ]
            stalls = [run["stall_s"] for run in runs]
            figures[case] = {"stall_s": statistics.median(stalls), "runs": runs}  # type: ignore[type-var]
            print(case, json.dumps(figures[case]), file=sys.stderr, flush=True)
    report("failures", {"workers": args.workers, "cases": figures})


if __name__ == "__main__":
    main()

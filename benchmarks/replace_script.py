"""From SIGKILL of a worker of a script to the first step of its replacement, forked and executed.

Workers of one script train small steps in a ring. One of them is killed, three times. Counted, in
seconds after the kill: the first line of the script after its imports, and the first step of the
replacement; and the CPU of the replacement up to that step. `mb` is the memory of the workers and
of the process that forks them; pages that processes share are counted once (Pss). The two programs
differ by one statement before the imports, which prevents the fork.

    python benchmarks/replace_script.py [--workers 1 4] [--repeat 2]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import ROOT, report

_LIMIT_S = 300.0
_KILLS = 3

SCRIPT = """
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import Dataset

import torch_edl


class Numbers(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        return torch.ones(8), torch.ones(1)


def note():
    with open(os.path.join(sys.argv[1], str(os.getpid())), "a") as file:
        file.write(f"{time.time()} {time.process_time()}\\n")


if __name__ == "__main__":
    note()
    job = torch_edl.init()
    model = nn.Linear(8, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for step, (x, y) in enumerate(job.loader(Numbers(), batch_size=8, epochs=1)):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        if step == 0:
            note()
        time.sleep(0.02)
"""


def notes(folder: Path) -> dict[int, list[list[float]]]:
    """Time and CPU time of each worker at its first line and its first step, by pid."""
    return {
        int(file.name): [[float(word) for word in line.split()] for line in text.splitlines()]
        for file in folder.iterdir()
        if (text := file.read_text()).endswith("\n")
    }


def memory(pids: set[int], folder: Path) -> float:
    """MB of workers and of the process that has forked them."""
    total = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdecimal() and (
                int(process.name) in pids
                or (
                    b"torch_edl.node.fork_server" in (process / "cmdline").read_bytes()
                    and f"TORCH_EDL_HOME={folder / 'home'}\0".encode()
                    in (process / "environ").read_bytes()
                )
            ):
                lines = (process / "smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1e3


def measure(folder: Path, workers: int, source: str) -> dict[str, float]:
    """One run: the medians of its kills."""
    told = folder / "told"
    told.mkdir()
    (folder / "train.py").write_text(source, encoding="utf-8")
    words = ["--nproc-per-node", str(workers), str(folder / "train.py"), str(told)]
    env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home")}
    began = time.time()
    with open(folder / "log", "w", encoding="utf-8") as log:
        job = subprocess.Popen(
            [sys.executable, "-m", "torch_edl.cli", "run", *words],
            env=env, cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip

    def stepped(count: int) -> dict[int, list[list[float]]]:
        while len(found := {p: n for p, n in notes(told).items() if len(n) == 2}) < count:
            if time.time() - began > _LIMIT_S or job.poll() is not None:
                raise SystemExit(f"the job did not come so far:\n{(folder / 'log').read_text()}")
            time.sleep(0.01)
        return found

    try:
        running = stepped(workers)
        found = {"start_s": [max(n[1][0] for n in running.values()) - began]}
        time.sleep(1.0)
        found["mb"] = [memory(set(running), folder)]
        gone: set[int] = set()
        for kill in range(1, _KILLS + 1):
            victim = max(running, key=lambda pid: running[pid][1][0])
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            gone.add(victim)
            after = stepped(workers + kill)
            (new,) = after.keys() - gone - running.keys()
            running = {pid: told for pid, told in after.items() if pid not in gone}
            (first, _), (step, cpu) = after[new]
            figures = {"begin_s": first - killed, "step_s": step - killed, "cpu_s": cpu}
            for key, value in figures.items():
                found.setdefault(key, []).append(value)
            time.sleep(1.0)
        return {key: round(statistics.median(values), 3) for key, values in found.items()}
    finally:
        for _ in range(2):  # at once
            job.send_signal(signal.SIGTERM)
        job.wait(60)


def main() -> None:
    """Prints a JSON line for each number of workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    programs = {"executed": "executed = True\n" + SCRIPT, "forked": SCRIPT}
    for workers in args.workers:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
        for _ in range(args.repeat):
            for name, source in programs.items():
                with tempfile.TemporaryDirectory(prefix="replace-") as folder:
                    runs[name].append(measure(Path(folder), workers, source))
        report("replace_script", {"workers": workers, "load": os.getloadavg()[0], **runs})


if __name__ == "__main__":
    main()

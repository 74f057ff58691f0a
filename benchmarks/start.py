"""From the command to the first step of the MNIST example, against torch alone.

In turn: `torch-edl run` of `examples/mnist` (the engine `local`, and two servers with two workers),
a process that only imports torch, and a process that imports torch and makes one step of the same
model in a plain loop. The clock begins before the process is started, and ends after its first
step. `plain` includes what torch imports for its first optimizer; `import` and a later step of the
same process are the least that any start can take (`least_s`), and `of_least` is the ratio to it.
`cpu_s` is the user and system time of all processes of the run; that of a job includes its one
epoch of 24 steps, and its end.

Then one worker and four workers start on one server. `last_first_s` is the time from the command to
the first step of the last worker. `mb` is the memory of the workers and of the process that forked
them after that step: pages that processes share are counted once (Pss).

    python benchmarks/start.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from report import ROOT, report

EXAMPLE = ROOT / "examples" / "mnist"

# Notes the process and the time of the first two steps, as the example itself does not.
_NOTE = """

import os, time

class _Note:
    steps = 0

    def on_batch_end(self, step, loss):
        self.steps += 1
        if self.steps <= 2:
            note = os.open(os.environ["START_NOTE"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(note, b"%d %.6f\\n" % (os.getpid(), time.time()))
            os.close(note)

def callbacks():
    return [_Note()]
"""

_PLAIN = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
import model as file
net = file.model()
optimizer = file.optimizer(net.parameters())
note = file._Note()
data = open(sys.argv[2], "rb").read()
images = torch.frombuffer(bytearray(data), dtype=torch.uint8)[: 64 * 64].float() / 255
for step in (1, 2):
    optimizer.zero_grad()
    loss = file.loss(torch.arange(64) % 10, net(images.reshape(64, 1, 8, 8)))
    loss.backward()
    optimizer.step()
    note.on_batch_end(step, loss.item())
"""


def measure(command: list[str], folder: Path) -> dict[str, float]:
    """Seconds from the start of a command to its first step (without one: to its end), between
    its first two steps, and of CPU."""
    note = folder / "note"
    note.unlink(missing_ok=True)
    env = {**os.environ, "START_NOTE": str(note), "TORCH_EDL_HOME": str(folder / "home")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    steps = sorted(when for _, when in notes(note)) or [ended]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {"first_s": steps[0] - began, "cpu_s": cpu}
    return {**found, "step_s": steps[1] - steps[0]} if len(steps) > 1 else found


def notes(file: Path) -> list[tuple[int, float]]:
    """The process and the time of each noted step."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(pid), float(when)) for pid, _, when in (line.partition(" ") for line in lines)]


def start_workers(command: list[str], folder: Path, count: int) -> dict[str, float]:
    """Seconds from the start of a command to the first step of the last of its workers, and MB of
    memory after that step."""
    note = folder / "note"
    note.unlink(missing_ok=True)
    env = {**os.environ, "START_NOTE": str(note), "TORCH_EDL_HOME": str(folder / "home")}
    began = time.time()
    job = subprocess.Popen([*command, "--workers", str(count)], env=env, stdout=subprocess.DEVNULL)
    try:
        first: dict[int, float] = {}
        while len(first) < count:
            if job.poll() is not None:
                raise SystemExit(f"the job ended after {len(first)} workers had begun")
            time.sleep(0.02)
            first = dict(reversed(notes(note)))
        return {"last_first_s": max(first.values()) - began, "mb": memory(first, str(note))}
    finally:
        for _ in range(2):  # at once
            job.send_signal(signal.SIGTERM)
        job.wait()


def memory(workers: Collection[int], note: str) -> float:
    """MB of workers and of the process that has forked them, which has the same environment."""
    total = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_worker = folder.name.isdecimal() and int(folder.name) in workers
            if is_worker or (
                b"torch_edl.node.fork_server" in (folder / "cmdline").read_bytes()
                and f"START_NOTE={note}\0".encode() in (folder / "environ").read_bytes()
            ):
                lines = (folder / "smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1e3


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    runs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        prepare = [sys.executable, str(EXAMPLE / "prepare.py"), str(folder / "data")]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        data = sorted((folder / "data").glob("train-*"))
        file = folder / "model.py"
        file.write_text((EXAMPLE / "model.py").read_text() + _NOTE)
        job = [str(Path(sys.executable).with_name("torch-edl")), "run", str(file), "--epochs", "1"]
        job += ["--data", *map(str, data)]
        parts = {
            "import": [sys.executable, "-c", "import torch"],
            "plain": [sys.executable, "-c", _PLAIN, str(folder), str(data[0])],
            "local": job,
            "servers": [*job, "--strategy", "ps", "--ps", "2", "--workers", "2"],
        }
        # Many epochs: the first workers leave tasks to the last one.
        endless = [*job, "--epochs", "10000", "--strategy", "ps"]
        for _ in range(repeat):
            for part, command in parts.items():
                runs.setdefault(part, []).append(measure(command, folder))
            for part, count in (("one", 1), ("four", 4)):
                runs.setdefault(part, []).append(start_workers(endless, folder, count))
    median = {
        part: {key: round(statistics.median(run[key] for run in found), 3) for key in found[0]}
        for part, found in runs.items()
    }
    least = round(median["import"]["first_s"] + median["plain"]["step_s"], 3)
    of_least, of_plain = (
        {part: round(median[part]["first_s"] / base, 2) for part in ("local", "servers")}
        for base in (least, median["plain"]["first_s"])
    )
    four_of_one = {
        key: round(median["four"][key] / value, 2) for key, value in median["one"].items()
    }
    figures = {"parts": median, "least_s": least, "of_least": of_least, "of_plain": of_plain}
    figures["four_of_one"] = four_of_one
    report("start", {"repeat": repeat, **figures})


if __name__ == "__main__":
    main()

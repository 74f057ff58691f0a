"""From the command to the first step of the MNIST example, against torch alone.

In turn: `torch-edl run` of `examples/mnist` (the engine `local`, and two servers with two workers),
a process that only imports torch, and a process that imports torch and makes one step of the same
model in a plain loop. The clock begins before the process is started, and ends after its first
step. `plain` includes what torch imports for its first optimizer; `import` and a later step of the
same process are the least that any start can take (`least_s`), and `of_least` is the ratio to it.
`cpu_s` is the user and system time of all processes of the run; that of a job includes its one
epoch of 24 steps, and its end.

    python benchmarks/start.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import ROOT, report

EXAMPLE = ROOT / "examples" / "mnist"

# Notes the time of the first two steps, as the example itself does not.
_NOTE = """

import os, time

class _Note:
    def on_batch_end(self, step, loss):
        if step <= 2:
            note = os.open(os.environ["START_NOTE"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(note, b"%.6f\\n" % time.time())
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
    steps = sorted(map(float, note.read_text().split())) if note.exists() else [ended]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {"first_s": steps[0] - began, "cpu_s": cpu}
    return {**found, "step_s": steps[1] - steps[0]} if len(steps) > 1 else found


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
        for _ in range(repeat):
            for part, command in parts.items():
                runs.setdefault(part, []).append(measure(command, folder))
    median = {
        part: {key: round(statistics.median(run[key] for run in found), 3) for key in found[0]}
        for part, found in runs.items()
    }
    least = round(median["import"]["first_s"] + median["plain"]["step_s"], 3)
    of_least, of_plain = (
        {part: round(median[part]["first_s"] / base, 2) for part in ("local", "servers")}
        for base in (least, median["plain"]["first_s"])
    )
    figures = {"parts": median, "least_s": least, "of_least": of_least, "of_plain": of_plain}
    report("start", {"repeat": repeat, **figures})


if __name__ == "__main__":
    main()

"""A training script of the user's own, started in each of the ways that there are."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from .conftest import ROOT, Place

EXAMPLES = ROOT / "examples" / "mnist"
SCRIPT = str(EXAMPLES / "train.py")
PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]
EDL = [PYTHON, "-m", "torch_edl.cli", "run"]
ENOUGH = 0.95
TIMEOUT_S = 60
# With two processes an update has twice the records, so there are half as many: 4 are too few.
EPOCHS = ["--epochs", "8"]


def accuracies(text: str) -> list[float]:
    """What each process printed at its end."""
    return [float(found) for found in re.findall(r"test accuracy ([\d.]+)", text)]


def command(place: Place, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, cwd=place.folder, env=place.env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.fixture
def start(place: Place) -> Iterator[Callable[[list[str]], subprocess.Popen[str]]]:
    """Starts a command that ends with its test."""
    with contextlib.ExitStack() as stack:

        def begin(words: list[str]) -> subprocess.Popen[str]:
            process = command(place, words)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield begin


def ended(process: subprocess.Popen[str], place: Place) -> str:
    text, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, text[-4000:]
    assert not place.processes(), "processes outlived their command"
    return text


def test_three_lines_and_an_import_are_all_that_changes() -> None:
    plain, ours = ((EXAMPLES / name).read_text() for name in ("train_plain.py", "train.py"))
    changes = list(difflib.ndiff(plain.splitlines(), ours.splitlines()))
    added = [line[2:] for line in changes if line.startswith("+ ") and line[2:].strip()]
    removed = [line[2:] for line in changes if line.startswith("- ")]
    assert added[0] == "import torch_edl"
    assert [line.split("# ")[1][:7] for line in added[1:]] == ["line 1:", "line 2:", "line 3:"]
    assert len(removed) == 1
    assert removed[0].startswith("batches = data.DataLoader(")


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        pytest.param([PYTHON, SCRIPT], 1, marks=pytest.mark.slow),
        ([*TORCHRUN, "--nproc-per-node", "2", SCRIPT], 2),
        ([*EDL, SCRIPT, "--workers", "2", "--job-name", "ring", "--output", "trained"], 2),
        # tests/e2e/test_torchrun.py starts several machines.
        pytest.param(
            [*EDL, "--nnodes", "1:4", "--nproc-per-node", "1", SCRIPT], 1, marks=pytest.mark.slow
        ),
        # But for the three lines it is the same.
        pytest.param([PYTHON, str(EXAMPLES / "train_plain.py")], 1, marks=pytest.mark.slow),
    ],
    ids=["python", "torchrun", "workers", "nnodes", "plain"],
)
def test_every_way_to_start_it_reaches_the_accuracy(
    words: list[str],
    processes: int,
    place: Place,
    start: Callable[[list[str]], subprocess.Popen[str]],
) -> None:
    text = ended(start([*words, *EPOCHS]), place)
    found = accuracies(text)
    assert len(found) == processes, text
    assert len(set(found)) == 1, "the processes ended with different models"
    assert found[0] >= ENOUGH
    if "--output" in words:
        place("export ring ring.pt")
        state = torch.load(place / "ring.pt", weights_only=True)
        assert {name.rpartition(".")[2] for name in state} == {"weight", "bias"}


LOGS = """
import torch, torch_edl
from torch import nn
job = torch_edl.init()
x = torch.arange(640.0)[:, None] / 640
model = nn.Linear(1, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=32)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        job.log(loss=loss, twice=2 * loss.item())
    print("a,b")
raise ValueError("no good")
"""


def test_what_a_script_does_is_seen(place: Place) -> None:
    """Records, epochs, steps, what it logs and raises: in status, for TensorBoard, at the end."""
    (place / "logs.py").write_text(LOGS)
    done = place("run --workers 1 --job-name seen --tensorboard tb logs.py", ok=False)
    assert done.stdout == "a,b\n" * 3
    lines = done.stderr.splitlines()
    assert lines[0].endswith("logs.py is a training script with torch_edl: 1 worker, job seen")
    trace = lines.index("Traceback (most recent call last):")
    assert lines[trace + 2 : trace + 4] == [
        '    raise ValueError("no good")',
        "ValueError: no good",
    ]
    assert lines[-2:] == [
        "error: logs.py: rank 0 ended (exit code 1): ValueError: no good",
        f"logs: {place.folder}/home/jobs/seen/logs",
    ]
    seen = json.loads(place("status seen --json").stdout)
    assert (seen["state"], seen["epoch"], seen["steps"]) == ("failed", 3, 60)
    assert seen["records"] == {"done": 1920, "total": 1920}
    assert seen["logged"]["twice"] == pytest.approx(2 * seen["loss"])
    assert "logs.py" in seen["traceback"]
    assert place("logs seen --role worker --id 0").stdout.startswith("a,b\na,b\na,b\nTraceback")
    written = b"".join(file.read_bytes() for file in (place / "tb").iterdir())
    assert b"train/twice" in written


@pytest.mark.slow  # tests/faults/ring kills more, and counts
def test_a_worker_that_is_killed_is_replaced(
    place: Place, start: Callable[[list[str]], subprocess.Popen[str]], tmp_path: Path
) -> None:
    """With 2:3 workers: training continues, and all that end have the same model."""
    process = start([*EDL, SCRIPT, "--workers", "2:3", "--job-name", "digits", "--epochs", "100"])
    victim = _trains(place, "digits", process)
    os.kill(victim, signal.SIGKILL)
    text = ended(process, place)
    found = accuracies(text)
    assert len(found) >= 2, text
    assert len(set(found)) == 1, text
    assert found[0] >= ENOUGH
    assert "signal 9" in text or "SIGKILL" in text


def _trains(place: Place, job: str, process: subprocess.Popen[str]) -> int:
    """Waits until the job has had some updates; the process id of one of its workers."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0][-4000:]
        status = subprocess.run(
            [PYTHON, "-m", "torch_edl.cli", "status", job, "--json"],
            env=place.env, cwd=place.folder, capture_output=True, text=True,
        )  # fmt: skip
        if re.search(r'"steps": \d{2,}', status.stdout):
            return max(
                p.pid
                for p in psutil.process_iter(["cmdline", "environ"])
                if SCRIPT in (p.info["cmdline"] or [])
                and "LOCAL_RANK" in (p.info["environ"] or {})
                and p.info["environ"].get("TORCH_EDL_HOME") == place.env["TORCH_EDL_HOME"]
            )
        time.sleep(0.1)
    pytest.fail("the job did not begin to train")


PACKAGE = """
import torch, torch_edl
job = torch_edl.init()
model = torch.nn.Linear(1, 1)
job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_package_that_calls_init_is_found_there(
    named: bool, place: Place, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "company.py").write_text(PACKAGE)
    place.env["PYTHONPATH"] += f"{os.pathsep}{site}"
    script = place.folder / "script.py"
    script.write_text(
        f"{'import torch_edl' if named else ''}\nimport company\nprint('at its end')\n"
    )
    process = command(place, [*EDL, str(script), "--workers", "1"])
    text, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, text
    assert "at its end" in text
    assert ("this job is not elastic" in text) == (not named)

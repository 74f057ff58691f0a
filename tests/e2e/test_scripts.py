"""A training script of the user's own, started in each of the ways that there are."""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.place import EDL, ROOT, Place
from tests.waiting import COMMAND_S

EXAMPLES = ROOT / "examples" / "mnist"
SCRIPT = str(EXAMPLES / "train.py")
PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]
ENOUGH = 0.95
# With two processes an update has twice the records, so there are half as many: 4 are too few.
EPOCHS = ["--epochs", "8"]


def accuracies(text: str) -> list[float]:
    """What each process printed at its end."""
    return [float(found) for found in re.findall(r"test accuracy ([\d.]+)", text)]


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
        pytest.param([*TORCHRUN, "--nproc-per-node", "2", SCRIPT], 2, marks=pytest.mark.slow),
        ([*EDL, "run", "--workers", "2", "--job-name", "ring", "--output", "trained", SCRIPT], 2),
        # tests/e2e/test_torchrun.py starts several machines.
        pytest.param(
            [*EDL, "run", "--nnodes", "1:4", "--nproc-per-node", "1", SCRIPT],
            1,
            marks=pytest.mark.slow,
        ),
        # But for the three lines it is the same.
        pytest.param([PYTHON, str(EXAMPLES / "train_plain.py")], 1, marks=pytest.mark.slow),
    ],
    ids=["python", "torchrun", "workers", "nnodes", "plain"],
)
def test_every_way_to_start_it_reaches_the_accuracy(
    words: list[str], processes: int, place: Place
) -> None:
    process = place.start(*words, *EPOCHS, stderr=subprocess.STDOUT)
    text, _ = process.communicate(timeout=COMMAND_S)
    assert process.returncode == 0, text[-4000:]
    assert not place.processes(), "processes outlived their command"
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


@pytest.mark.slow
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
    assert (seen["records"]["done"], seen["records"]["total"]) == (1920, 1920)
    assert seen["logged"]["twice"] == pytest.approx(2 * seen["loss"])
    assert "logs.py" in seen["traceback"]
    assert place("logs seen --role worker --id 0").stdout.startswith("a,b\na,b\na,b\nTraceback")
    written = b"".join(file.read_bytes() for file in (place / "tb").iterdir())
    assert b"train/twice" in written


PACKAGE = """
import torch, torch_edl
job = torch_edl.init()
model = torch.nn.Linear(1, 1)
job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.slow
def test_a_package_that_calls_init_is_found_there(place: Place, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "company.py").write_text(PACKAGE)
    (place / "script.py").write_text("import company\nprint('at its end')\n")
    path = f"{place.env['PYTHONPATH']}{os.pathsep}{site}"
    process = place.start(
        *EDL, "run", "--workers", "1", "script.py",
        env={**place.env, "PYTHONPATH": path}, stderr=subprocess.STDOUT,
    )  # fmt: skip
    text, _ = process.communicate(timeout=COMMAND_S)
    assert process.returncode == 0, text
    assert "at its end" in text
    assert "this job is not elastic" in text


PARSES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint")
parser.add_argument("--epochs")
args = parser.parse_args()
print("restores", args.checkpoint, args.epochs)
"""


@pytest.mark.parametrize("uses", ["import torch_edl\n", ""], ids=["elastic", "plain"])
def test_what_follows_a_script_is_parsed_by_the_script(place: Place, uses: str) -> None:
    """Its own error is followed by our hint."""
    (place / "parses.py").write_text(uses + PARSES)
    if uses:
        assert "restores a.pt 3" in place("run parses.py --checkpoint a.pt --epochs 3").text
    text = place("run -m parses --job-name j", ok=False).text
    theirs, ours = (text.rfind(t) for t in ("unrecognized arguments: --job-name j", "before the s"))
    assert 0 < theirs < ours


ENDS = """
import os, sys
import torch, torch_edl
job = torch_edl.init()
model = torch.nn.Linear(1, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for x in job.loader(torch.arange(400.0)[:, None], batch_size=10, global_batch_size=20):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
    if job.step == 12:
        if sys.argv[1] == "vanish":
            os._exit(0)
        break
"""


@pytest.mark.parametrize(
    ("how", "code", "last"),
    [
        ("vanish", 1, "rank 0 ended (exit code 0) inside its loop"),
        pytest.param("break", 0, "; ended early: 160 records not trained", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_does_not_train_all_records_says_so(
    how: str, code: int, last: str, place: Place
) -> None:
    (place / "ends.py").write_text(ENDS)
    done = place(f"run --workers 1 --job-name {how} ends.py {how}", ok=not code)
    assert done.code == code
    assert last in done.stderr
    report = json.loads(place(f"audit {how} --json", ok=False).stdout)
    assert report["verdict"] != "holds"

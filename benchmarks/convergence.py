"""Whether a job learns the same while its workers come and go: Wide & Deep and xDeepFM.

Real jobs on this machine, on two parameter servers with asynchronous SGD: 4 workers, 8 workers, and
4 to 8 of them, which change while they train: `torch-edl scale` asks for 8, one is killed, `scale`
goes back to 4, and to 8 again. The model is evaluated on the same held-out records along the way.
All settings train the same records, in an order that is a function of the seed.

    python -m benchmarks.convergence [--models wide_deep xdeepfm] [--seeds 3] [--records 200000]

The published figure is one curve for all. `spread` is the largest difference, at any evaluation,
between seeds of one setting; `difference` that between the means of two settings.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import plots
from benchmarks.report import ROOT, report
from torch_edl.launch.jobs.folder import JobFolder

_EDL = [sys.executable, "-m", "torch_edl.cli"]
_BATCH, _EVALUATIONS = 128, 8
_LIMIT_S = 900.0
Curve = list[tuple[int, float, float]]
"""Records, held-out loss and AUC at each evaluation."""


def scale(workers: int, name: str) -> None:
    """Asks for another number of workers."""
    command = [*_EDL, "scale", name, "--workers", f"1:{workers}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def kill_one(name: str) -> None:
    """SIGKILL for the first worker that runs."""
    for process in JobFolder(name).last_status()["processes"]:
        if process["role"] == "worker" and process["state"] == "running":
            with contextlib.suppress(ProcessLookupError):
                os.kill(process["pid"], signal.SIGKILL)
            return


# What is done when such a share of the data is trained.
_CHANGES = (
    (0.1, functools.partial(scale, 8)),
    (0.35, kill_one),
    (0.5, functools.partial(scale, 4)),
    (0.75, functools.partial(scale, 8)),
)
SETTINGS = {"4 workers": (4, ()), "8 workers": (8, ()), "4 to 8 workers": (4, _CHANGES)}


def train(
    model: str, setting: str, seed: int, data: Path, *, records: int, rate: float
) -> dict[str, Any]:
    """One job; returns its last status."""
    workers, changes = SETTINGS[setting]
    name = f"{model}-{setting.replace(' ', '-')}-{seed}"
    log = data.parent / f"{name}.log"
    with open(log, "w", encoding="utf-8") as output:
        job = subprocess.Popen(
            [
                *_EDL, "run", str(ROOT / "examples" / model / "model.py"), "--job-name", name,
                "--data", str(data / "train-*.parquet"),
                "--eval-data", str(data / "eval-*.parquet"),
                "--strategy", "ps", "--ps", "2", "--workers", f"1:{workers}", "--seed", str(seed),
                "--batch-size", str(_BATCH), "--records-per-task", str(8 * _BATCH),
                "--eval-every", str(records // _BATCH // _EVALUATIONS), "--worker-threads", "1",
                "--", "--lr", str(rate),
            ],
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        for share, change in changes:
            _await(job, name, int(share * records))
            change(name)
        if job.wait(_LIMIT_S):
            raise RuntimeError(f"{name} failed")
    except Exception as error:
        raise RuntimeError(log.read_text(encoding="utf-8")[-3000:]) from error
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait(60)
    status = JobFolder(name).last_status()
    assert status["records"]["done"] == records, status["records"]
    return status


def _await(job: subprocess.Popen[bytes], name: str, records: int) -> None:
    """Wait until a number of records is trained."""
    deadline = time.monotonic() + _LIMIT_S
    while JobFolder(name).last_status().get("records", {"done": 0})["done"] < records:
        if job.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{name} has ended, or does not train, before {records:,} records")
        time.sleep(0.1)


def curve(status: dict[str, Any]) -> Curve:
    """What the evaluations of a job found."""
    return [
        (each["steps"] * _BATCH, each["metrics"]["loss"], each["metrics"]["auc"])
        for each in status["evaluations"]
    ]


def _at(curve: Curve, records: int, part: int) -> float:
    """Loss (1) or AUC (2) after a number of records, interpolated between two evaluations."""
    for (left, *before), (right, *after) in itertools.pairwise(curve):
        if left <= records <= right:
            weight = (records - left) / max(1, right - left)
            return before[part - 1] * (1 - weight) + after[part - 1] * weight
    return curve[0][part] if records < curve[0][0] else curve[-1][part]


def compare(curves: dict[str, list[Curve]], records: int, part: int) -> dict[str, float]:
    """The largest spread within a setting, and the largest difference between two settings."""
    spread = difference = 0.0
    for point in range(2, _EVALUATIONS + 1):
        at = records * point // _EVALUATIONS
        values = {name: [_at(each, at, part) for each in of] for name, of in curves.items()}
        spread = max(spread, *(max(each) - min(each) for each in values.values()))
        means = [statistics.mean(each) for each in values.values()]
        difference = max(difference, max(means) - min(means))
    return {"spread": round(spread, 4), "difference": round(difference, 4)}


def _draw(models: dict[str, dict[str, list[Curve]]]) -> str:
    made, axes = plots.figure(len(models), title="AUC on held-out records", share=False)
    for axis, (model, curves) in zip(axes, models.items(), strict=True):
        for colour, (setting, of) in zip(plots.COLOURS, curves.items(), strict=False):
            for number, each in enumerate(of):
                label = setting if number == 0 else None
                records, _, auc = zip(*each, strict=True)
                axis.plot(records, auc, color=colour, label=label, marker=".", linewidth=0.9)
        axis.set_title(model, fontsize=9, loc="left")
        axis.set_ylabel("AUC")
        axis.legend(loc="lower right", fontsize=8)
    axes[-1].set_xlabel("records")
    return plots.save(made, "convergence")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["wide_deep", "xdeepfm"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of Adagrad")
    given = parser.parse_args(arguments)
    models: dict[str, dict[str, list[Curve]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TORCH_EDL_HOME": f"{folder}/home", "OMP_NUM_THREADS": "1"}
        data = Path(folder, "data")
        generate = [sys.executable, str(ROOT / "examples" / "deepfm" / "generate.py")]
        sizes = ["--records", str(given.records), "--eval-records", "10000", "--ids", "200"]
        subprocess.run([*generate, "--out", str(data), *sizes], check=True, capture_output=True)
        for model in given.models:
            curves: dict[str, list[Curve]] = {name: [] for name in SETTINGS}
            for seed in range(given.seeds):
                for setting in SETTINGS:
                    began = time.monotonic()
                    status = train(model, setting, seed, data, records=given.records, rate=given.lr)
                    curves[setting].append(curve(status))
                    last, took = curves[setting][-1][-1], time.monotonic() - began
                    print(f"{model}, {setting}, seed {seed}: {last}, {took:.0f} s", flush=True)
            models[model] = curves
    picture = _draw(models)
    for model, curves in models.items():
        ends = {
            setting: [(round(each[-1][1], 4), round(each[-1][2], 4)) for each in of]
            for setting, of in curves.items()
        }
        figures = {
            "model": model,
            "records": given.records,
            "seeds": given.seeds,
            "learning_rate": given.lr,
            "held_out_loss_and_auc": ends,
            "auc": compare(curves, given.records, 2),
            "loss": compare(curves, given.records, 1),
            "picture": picture,
        }
        report("convergence", figures)


if __name__ == "__main__":
    main()

"""Figures after each epoch, on which all processes agree: a training stops by them, and its best
model is exported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests.place import Place
from torch_edl.checkpoint import layout

SCRIPTS = Path(__file__).with_name("scripts")
OPTIONS = "--data n.parquet --eval-data n.parquet --batch-size 20 --records-per-task 40"


@pytest.fixture
def data(place: Place) -> None:
    pq.write_table(pa.table({"n": np.arange(400)}), place / "n.parquet")


def counted(folder: Path) -> float:
    """The count of an exported model."""
    return float(load_file(folder / "model.safetensors")["count"][0])


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        # The fast case of a ring is the same job; the refusal of a metric has a local one.
        pytest.param("--strategy local", 20, marks=pytest.mark.slow),
        pytest.param("--strategy ps --workers 2", 20, marks=pytest.mark.slow),
        pytest.param("--strategy ps --mode sync --workers 2", 0, marks=pytest.mark.slow),
        ("--strategy allreduce --workers 2", 10),
    ],
)
def test_a_model_file_stops_after_its_best_epoch_which_is_the_output(
    place: Place, tmp_path: Path, strategy: str, steps: int
) -> None:
    out, kept, best = tmp_path / "out", tmp_path / "ck", 2 * (steps or 10)
    done = place(
        f"run @overfit {OPTIONS} --epochs 6 {strategy} --keep-best error --early-stop error:2 "
        f"--checkpoint-dir {kept} --keep-checkpoints 1 --output {out} --summary s.json -- "
        f"{best} {tmp_path}"
    )
    summary = place.json("s.json")
    assert summary["records"] == 4 * 400
    errors = [each["metrics"]["error"] for each in summary["evaluations"]]
    found = errors.index(min(errors))
    assert (len(errors), found) == (4, 1)
    assert errors[-1] > errors[found]
    assert abs(counted(out) - best) == pytest.approx(errors[found])
    at = summary["evaluations"][found]["steps"]
    assert (summary["best"]["steps"], summary["best"]["value"]) == (at, errors[found])
    assert f"best: error {errors[found]:.4g} (step {at})" in done.text
    steps_kept = [layout.read(each).steps for each in layout.complete(kept)]
    assert steps_kept == [at, summary["evaluations"][-1]["steps"]]
    heard = [json.loads(file.read_text()) for file in tmp_path.glob("heard-*.json")]
    assert [[epoch, figures["error"]] for epoch, figures in max(heard, key=len)] == [
        [number, error] for number, error in enumerate(errors, 1)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_a_resumed_job_exports_the_best_model_of_the_job_before(place: Place) -> None:
    options = f"{OPTIONS} --strategy local --keep-best error --checkpoint-dir again --output last"
    place(f"run @overfit {options} --epochs 2 -- 20 .")
    assert counted(place / "last") == pytest.approx(20)
    place(f"run --job-name later @overfit {options} --epochs 3 --resume -- 20 .")
    assert counted(place / "last") == pytest.approx(20)
    assert [each.name[-2:] for each in layout.complete(place / "again")] == ["20", "40", "60"]
    found = place("status --json later").stdout
    assert '"metric": "error"' in found


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    "option",
    [
        "--early-stop eror:2 --output none",
        pytest.param("--keep-best eror --output none", marks=pytest.mark.slow),
        pytest.param(
            "--keep-best eror --epochs 4 --checkpoint-dir again --resume", marks=pytest.mark.slow
        ),
    ],
)
def test_an_unknown_metric_is_refused_before_the_first_step(place: Place, option: str) -> None:
    done = place(f"run @overfit {OPTIONS} --strategy local {option} -- 20 .", ok=False)
    assert "eror" in done.stderr
    assert ": no such metric; the evaluation has loss, error" in done.stderr


@pytest.mark.slow
def test_all_ranks_see_the_same_figures_and_stop_in_the_same_epoch(place: Place) -> None:
    place(f"run --job-name early --ps 2 --workers 2 {SCRIPTS}/early_stop.py . 5")
    first, second = place.json("0.json"), place.json("1.json")
    assert first == second
    epochs = [figures["epoch"] for figures in first["history"]]
    assert epochs == [1, 2]
    assert first["final"]["auc"] == first["history"][-1]["eval_auc"]


@pytest.mark.slow
def test_loops_of_the_script_validate_one_model_and_stop_together(place: Place) -> None:
    done = place(f"run --job-name loops --ps 2 --workers 2 {SCRIPTS}/early_loop.py . 50")
    first, second = place.json("loop-0.json"), place.json("loop-1.json")
    losses = first["losses"]
    assert losses == second["losses"]
    assert 1 < len(losses) < 50
    assert losses[-1] > losses[-2]
    assert first["step"] + second["step"] == len(losses) * 320
    assert "left its loop" not in done.text

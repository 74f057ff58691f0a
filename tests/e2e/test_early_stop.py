"""Figures after each epoch, on which all processes agree, and a training that stops by them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .conftest import Place

SCRIPT = Path(__file__).with_name("scripts") / "early_stop.py"


def test_all_ranks_see_the_same_figures_and_stop_in_the_same_epoch(place: Place) -> None:
    place(f"run --job-name early --ps 2 --workers 2 {SCRIPT} . 5")
    first, second = place.json("0.json"), place.json("1.json")
    assert first == second
    epochs = [figures["epoch"] for figures in first["history"]]
    assert epochs == [1, 2]
    assert first["final"]["auc"] == first["history"][-1]["eval_auc"]


@pytest.mark.slow
def test_loops_of_the_script_validate_one_model_and_stop_together(place: Place) -> None:
    script = SCRIPT.with_name("early_loop.py")
    done = place(f"run --job-name loops --ps 2 --workers 2 {script} . 50")
    first, second = place.json("loop-0.json"), place.json("loop-1.json")
    losses = first["losses"]
    assert losses == second["losses"]
    assert 1 < len(losses) < 50
    assert losses[-1] > losses[-2]
    assert first["step"] + second["step"] == len(losses) * 320
    assert "left its loop" not in done.text


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("--strategy local", marks=pytest.mark.slow),
        "--strategy ps --workers 2",
        pytest.param("--strategy allreduce --workers 2", marks=pytest.mark.slow),
    ],
)
def test_a_model_file_is_evaluated_after_each_epoch_and_stops(
    place: Place, tmp_path: Path, how: str
) -> None:
    pq.write_table(pa.table({"n": np.arange(400)}), place / "n.parquet")
    place(
        f"run @slope --data n.parquet --eval-data n.parquet --batch-size 20 --epochs 6 {how} "
        "--records-per-task 40 --early-stop constant:2 --summary s.json --",
        str(tmp_path),
    )
    summary = place.json("s.json")
    evaluations = [(each["steps"], each["metrics"]["loss"]) for each in summary["evaluations"]]
    steps = [at for at, _ in evaluations]
    assert len(steps) == 3
    assert [at * 3 for at in steps] == [steps[-1], 2 * steps[-1], 3 * steps[-1]]
    assert summary["records"] == 3 * 400
    heard = [json.loads(file.read_text()) for file in tmp_path.glob("heard-*.json")]
    ends = [(epoch, figures["loss"]) for epoch, figures in max(heard, key=len)]
    assert ends == [(number, loss) for number, (_, loss) in enumerate(evaluations, 1)]


def test_an_early_stop_by_no_metric_is_refused_before_the_first_step(
    place: Place, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"n": np.arange(400)}), place / "n.parquet")
    options = "--eval-data n.parquet --early-stop acu:2 --strategy local"
    done = place(f"run @slope --data n.parquet {options} --", str(tmp_path), ok=False)
    assert "--early-stop acu:2: no such metric; the evaluation has loss, constant" in done.stderr

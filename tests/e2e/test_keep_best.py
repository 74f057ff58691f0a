"""A model file whose model gets worse after its best epoch, which is the one that is exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from torch_edl.checkpoint import layout

from .conftest import Place

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
        ("--strategy local", 20),
        ("--strategy ps --workers 2", 20),
        ("--strategy ps --mode sync --workers 2", 0),
        ("--strategy allreduce --workers 2", 10),
    ],
)
def test_the_output_is_the_model_of_the_best_epoch(place: Place, strategy: str, steps: int) -> None:
    out, folder = place / "out", place / "ck"
    name = f"best-{steps}-{'sync' in strategy}-{'ps' in strategy}"
    best = 2 * (steps or 10)
    done = place(
        f"run --job-name {name} @overfit {OPTIONS} --epochs 4 {strategy} --keep-best error "
        f"--checkpoint-dir {folder}-{name} --keep-checkpoints 1 --output {out} --summary s.json -- "
        f"{best}"
    )
    summary = place.json("s.json")
    errors = [each["metrics"]["error"] for each in summary["evaluations"]]
    found = errors.index(min(errors))
    assert (len(errors), found) == (4, 1)
    assert abs(counted(out) - best) == pytest.approx(errors[found])
    at = summary["evaluations"][found]["steps"]
    assert summary["best"]["steps"] == at
    assert summary["best"]["value"] == errors[found]
    assert f"best: error {errors[found]:.4g} (step {at})" in done.text
    kept = [layout.read(each).steps for each in layout.complete(f"{folder}-{name}")]
    assert kept == [at, summary["evaluations"][-1]["steps"]]
    assert errors[-1] > errors[found]


@pytest.mark.usefixtures("data")
def test_a_resumed_job_exports_the_best_model_of_the_job_before(place: Place) -> None:
    options = f"{OPTIONS} --strategy local --keep-best error --checkpoint-dir again --output last"
    place(f"run @overfit {options} --epochs 2 -- 20")
    assert counted(place / "last") == pytest.approx(20)
    place(f"run --job-name later @overfit {options} --epochs 3 --resume -- 20")
    assert counted(place / "last") == pytest.approx(20)
    assert [each.name[-2:] for each in layout.complete(place / "again")] == ["20", "40", "60"]
    found = place("status --json later").stdout
    assert '"metric": "error"' in found


@pytest.mark.usefixtures("data")
def test_an_unknown_metric_is_refused_before_the_first_step(place: Place) -> None:
    options = f"{OPTIONS} --strategy local --output none --keep-best eror"
    done = place(f"run @overfit {options} -- 20", ok=False)
    assert "--keep-best eror: no such metric; the evaluation has loss, error" in done.stderr
    options = f"{OPTIONS} --strategy local --checkpoint-dir again --resume --keep-best eror"
    done = place(f"run @overfit {options} --epochs 4 -- 20", ok=False)
    assert "--keep-best eror: no such metric" in done.stderr

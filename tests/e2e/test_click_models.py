"""The examples on click data train, on servers, from the files that their generator makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train-*.parquet and eval-*.parquet."""
    folder = tmp_path_factory.mktemp("clicks")
    generate = [sys.executable, str(ROOT / "examples" / "deepfm" / "generate.py")]
    sizes = ["--records", "30000", "--eval-records", "5000", "--ids", "60"]
    subprocess.run([*generate, "--out", str(folder), *sizes], check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("example", ["deepfm", "wide_deep", "xdeepfm"])
def test_a_model_of_clicks_learns(place: Any, clicks: Path, example: str) -> None:
    place(
        f"run %/{example}/model.py --data {clicks}/train-*.parquet --workers 2 --ps 2 "
        f"--eval-data {clicks}/eval-*.parquet --batch-size 128 --worker-threads 1 "
        f"--summary {example}.json --job-name {example}"
    )
    summary = place.json(f"{example}.json")
    assert (summary["state"], summary["strategy"], summary["records"]) == ("finished", "ps", 30_000)
    assert summary["metrics"]["auc"] > 0.7

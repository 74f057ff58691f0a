"""The check of the counting example names what is missing, double or from nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.waiting import HANG_S

EXAMPLE = Path(__file__).parents[3] / "examples" / "counting"


def run(script: str, *words: object) -> tuple[int, list[str]]:
    command = [sys.executable, str(EXAMPLE / script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The records 0 to 9."""
    assert run("prepare.py", tmp_path / "data", "--records", 10, "--files", 3)[0] == 0
    return tmp_path / "data"


def model(folder: Path, counts: dict[int, float], total: float) -> Path:
    """A trained model as ``--output`` writes it."""
    (folder / "embeddings").mkdir(parents=True)
    save_file({"total": np.full(3, total, np.float32)}, folder / "model.safetensors")
    rows = np.repeat(np.array(list(counts.values()), np.float32)[:, None], 2, 1)
    ids = np.array(list(counts), np.int64)
    save_file({"ids": ids, "vectors": rows}, folder / "embeddings" / "rows.safetensors")
    return folder


def test_a_model_that_counted_each_record_passes(tmp_path: Path, data: Path) -> None:
    right = model(tmp_path / "model", dict.fromkeys(range(10), 3.0), 30)
    assert run("check.py", right, data, "--epochs", 3) == (
        0, ["every record was counted exactly once per epoch"],
    )  # fmt: skip


def test_what_is_wrong_is_named_by_record(tmp_path: Path, data: Path) -> None:
    counts = dict.fromkeys(range(9), 1.0) | {4: 2.0, 77: 1.0}
    code, lines = run("check.py", model(tmp_path / "model", counts, 11), data)
    assert code == 1
    assert lines == [
        "record 4: counted 2, expected 1",
        "record 9: counted 0, expected 1",
        "record 77: counted 1, but it is in no file",
        "dense weights: counted 11, expected 10",
        "NOT every record was counted once per epoch",
    ]


def test_a_group_smaller_than_the_quorum_counts_more(tmp_path: Path, data: Path) -> None:
    """The mean of 3, 2 and 1 pushes at a rate of 3; twice in groups of 3 is double."""
    counts = dict.fromkeys(range(10), 1.0) | {7: 1.5, 8: 3.0}
    right = model(tmp_path / "right", counts, 12.5)
    assert run("check.py", right, data, "--quorum", 3)[0] == 0
    double = model(tmp_path / "double", counts | {9: 2.0}, 13.5)
    code, lines = run("check.py", double, data, "--quorum", 3)
    assert (code, lines[0]) == (1, "record 9: counted 2, expected 1")
    for number, total in enumerate((9, 31)):
        code, lines = run(
            "check.py", model(tmp_path / f"dense-{number}", counts, total), data, "--quorum", 3
        )
        assert (code, lines[0]) == (1, f"dense weights: counted {total}, expected 10 to 30")


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path, data: Path) -> None:
    code, (line,) = run("check.py", tmp_path / "none", data)
    assert code == 2
    assert "none" in line

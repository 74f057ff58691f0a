"""A record that ends each worker which computes it fails the job by name, or is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import prepare
from tests.place import Done, Place

POISON = Path(__file__).with_name("poison_model.py")
RECORDS, RECORD, BATCH = 400, 171, 8
SLOW = pytest.mark.slow


def run(folder: Path, kind: str, where: str, *flags: str, ok: bool = False) -> Done:
    """Train on numbers of which one is poison."""
    prepare.write(folder, records=RECORDS, files=1)
    line = (
        f"run {POISON} --data data-0.parquet --batch-size {BATCH} --records-per-task 64 "
        f"--output model --summary s.json {' '.join(flags)} -- {RECORD} {kind} {where}"
    )
    return Place(folder)(line, ok=ok)


@pytest.mark.parametrize(
    ("kind", "where", "ended"),
    [
        pytest.param("memory", "forward", "signal 9 (SIGKILL: is there enough memory?)"),
        pytest.param("segfault", "feed", "signal 11", marks=SLOW),
        pytest.param("exit", "dataset", "exit code 0", marks=SLOW),
    ],
)
def test_the_job_fails_and_names_the_records(
    tmp_path: Path, kind: str, where: str, ended: str
) -> None:
    done = run(tmp_path, kind, where, "--ps", "1", "--workers", "2")
    error = done.stderr.split("error: ")[-1]
    assert "3 workers in a row died while they read or computed these records" in error
    assert f"ended with {ended}" in error
    named = error.partition(" of ")[0]
    assert (str(RECORD) in named) or (where == "feed" and named == "records 128 to 191"), named


@SLOW
@pytest.mark.parametrize(
    ("kind", "error"),
    [("exception", f"ValueError: {RECORD} is poison"), ("base", f"Interrupted: {RECORD}")],
)
def test_an_exception_of_any_kind_is_named(tmp_path: Path, kind: str, error: str) -> None:
    done = run(tmp_path, kind, "forward", "--ps", "1")
    assert error in done.stderr
    assert f"{RECORD} of " in done.stderr


@SLOW
@pytest.mark.parametrize("where", ["forward", "dataset"])
def test_the_records_are_left_out_and_counted(tmp_path: Path, where: str) -> None:
    """Every other record counts once."""
    done = run(
        tmp_path, "segfault", where, "--ps", "2", "--workers", "2", "--skip-damaged", ok=True
    )
    assert "the records are left out (--skip-damaged)" in done.text
    rows = load_file(tmp_path / "model" / "embeddings" / "rows.safetensors")
    counts = dict(zip(rows["ids"].tolist(), rows["vectors"][:, 0].tolist(), strict=True))
    assert set(counts.values()) <= {0.0, 1.0}  # a pull made the row of a record left out
    left_out = {number for number in range(RECORDS) if not counts.get(number)}
    assert RECORD in left_out
    assert len(left_out) <= (BATCH if where == "forward" else 64)
    assert Place(tmp_path).json("s.json")["damaged"] == len(left_out)

"""A record that ends each worker which computes it fails the job by name, or is left out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import prepare
from tests.kafka_server import Kafka
from tests.place import Done, Place

POISON = Path(__file__).with_name("poison_model.py")
RING = Path(__file__).with_name("poison_ring_model.py")
SCRIPT = Path(__file__).with_name("poison_script.py")
STREAM = Path(__file__).with_name("poison_stream_model.py")
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
    assert re.search(rf"records (\d+, )*{RECORD}(, \d+)* of ", done.stderr)


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


def run_ring(folder: Path, kind: str, where: str, *flags: str, ok: bool = False) -> Done:
    """Train the numbers in a ring of two, of which one is poison."""
    (folder / "n.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(RECORDS)))
    (folder / "goes-on").touch()
    line = (
        f"run {RING} --data n.csv --strategy allreduce --workers 2 --batch-size {BATCH} "
        f"--no-shuffle --output model --summary s.json {' '.join(flags)} "
        f"-- {RECORDS} goes-on 0 {RECORD} {kind} {where}"
    )
    return Place(folder)(line, ok=ok)


@SLOW
@pytest.mark.parametrize(
    ("kind", "where", "ended"),
    [
        ("memory", "feed", "signal 9 (SIGKILL: is there enough memory?)"),
        ("segfault", "forward", "signal 11"),
    ],
)
def test_a_ring_fails_and_names_the_records(
    tmp_path: Path, kind: str, where: str, ended: str
) -> None:
    done = run_ring(tmp_path, kind, where)
    error = done.stderr.split("error: ")[-1]
    assert "n.csv: 3 workers in a row died while they read or computed these records" in error
    assert f"ended with {ended}" in error
    first, last = error.removeprefix("records ").partition(" of ")[0].split(" to ")
    assert int(first) <= RECORD <= int(last) < int(first) + BATCH
    assert done.text.count(f"ended with {ended[:8]}") <= 5, "a handful of deaths"


@SLOW
def test_a_ring_leaves_the_records_out_and_counts_them(tmp_path: Path) -> None:
    """Every other record counts once, although the members have unequal parts without them."""
    done = run_ring(tmp_path, "segfault", "forward", "--skip-damaged", ok=True)
    assert "the records are left out (--skip-damaged)" in done.text
    counts = load_file(tmp_path / "model" / "model.safetensors")["records"]
    left_out = np.flatnonzero(counts == 0).tolist()
    assert RECORD in left_out
    assert len(left_out) <= BATCH
    assert np.array_equal(counts[counts != 0], np.ones(RECORDS - len(left_out)))
    summary = Place(tmp_path).json("s.json")
    assert (summary["damaged"], summary["nan_steps"]) == (len(left_out), 0)


@SLOW
@pytest.mark.parametrize("holder", ["ring", "servers"])
@pytest.mark.parametrize(
    ("kind", "ended"),
    [("memory", "signal 9 (SIGKILL: is there enough memory?)"), ("segfault", "signal 11")],
)
def test_a_script_fails_and_names_the_records(
    tmp_path: Path, holder: str, kind: str, ended: str
) -> None:
    flags = "--ps 1" * (holder == "servers") + " --max-restarts 9" * (kind == "segfault")
    line = f"run --workers 2 {flags} {SCRIPT} {holder} {RECORDS} {RECORD} {kind} forward"
    done = Place(tmp_path)(line, ok=False)
    error = done.stderr.split("error: ")[-1]
    assert "of the dataset: 3 workers in a row died while they read or computed these" in error
    assert f"ended with {ended}" in error
    assert "--skip-damaged" not in error, "a script has no such option"
    first, last = error.removeprefix("records ").partition(" of ")[0].split(" to ")
    assert int(first) <= RECORD <= int(last) < int(first) + BATCH


@SLOW
@pytest.mark.parametrize(
    ("flags", "skips"), [("--strategy local", False), ("--ps 1 --workers 3", True)]
)
def test_records_of_a_stream(tmp_path: Path, flags: str, skips: bool) -> None:
    """They are named by their offset in the partition, and left out if the user wants that."""
    kafka = Kafka("numbers:1")
    try:
        kafka.produce("numbers", 0, [b"%d" % n for n in range(RECORDS)])
        line = (
            f"run {STREAM} --data {kafka.url('numbers')} --epochs stream --max-records {RECORDS} "
            f"{flags} --batch-size {BATCH} --records-per-task 64 --output model --summary s.json "
            f"{'--skip-damaged ' * skips}-- {RECORD} segfault forward"
        )
        done = Place(tmp_path)(line, ok=skips)
    finally:
        kafka.stop()
    first = RECORD - RECORD % BATCH
    assert f"records {first} to {first + BATCH - 1} of kafka:" in done.text
    assert "3 workers in a row died while they read or computed these records" in done.text
    if not skips:
        return
    rows = load_file(tmp_path / "model" / "embeddings" / "rows.safetensors")
    counts = dict(zip(rows["ids"].tolist(), rows["vectors"][:, 0].tolist(), strict=True))
    left_out = {number for number in range(RECORDS) if counts.get(number, 0.0) != 1.0}
    assert left_out == set(range(first, first + BATCH))
    assert Place(tmp_path).json("s.json")["damaged"] == BATCH

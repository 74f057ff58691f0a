from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from torch_edl.data.merge_predictions import merge
from torch_edl.errors import JobFailedError


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Three tasks of 4, 1 and 3 records; the score is the number of the record."""
    folder = tmp_path / "predictions"
    folder.mkdir()
    first = 0
    for task, size in ((0, 4), (9, 1), (10, 3)):
        score = np.arange(first, first + size, dtype=np.float32)
        save(folder, task, score=score, probs=np.stack([score, -score], 1))
        first += size
    # A worker died in the middle of writing this one.
    (folder / ".part-000000000010.npz.77").write_bytes(b"PK")
    return folder


def save(folder: Path, task: int, **arrays: np.ndarray) -> None:
    np.savez(folder / f"part-{task:012d}.npz", **arrays)


def test_rows_are_in_the_order_of_the_tasks(parts: Path, tmp_path: Path) -> None:
    for suffix in (".npz", ".parquet", ".csv"):
        assert merge(parts, tmp_path / f"out{suffix}", tasks=3) == 8
    score = np.arange(8, dtype=np.float32)
    with np.load(tmp_path / "out.npz") as got:
        assert sorted(got) == ["probs", "score"]
        np.testing.assert_array_equal(got["score"], score)
        np.testing.assert_array_equal(got["probs"], np.stack([score, -score], 1))
        assert got["probs"].dtype == np.float32
    # Lists of fixed length, and a column for each element.
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.to_pydict() == {
        "score": score.tolist(),
        "probs": [[i, -i] for i in score.tolist()],
    }
    table = pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert table.column_names == ["score", "probs_0", "probs_1"]
    assert table["probs_1"].to_pylist() == [-i for i in range(8)]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
@pytest.mark.parametrize(
    "values",
    [
        np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.int64),
        np.array([True, False]),
        np.array(["a", 'longer, "quoted"']),
        np.array([np.nan, np.inf], np.float64),
        np.array([1.5, 2.5], np.float16),
        np.zeros((2, 3), np.float32, order="F"),
        np.array([2**63 - 1, -(2**63)], np.int64),
    ],
    ids=["matrix", "bool", "text", "nan", "half", "fortran", "extreme"],
)
def test_kinds_of_output(tmp_path: Path, suffix: str, values: np.ndarray) -> None:
    save(tmp_path, 0, y=values[:1])
    save(tmp_path, 1, y=values[1:])
    output = tmp_path / f"out{suffix}"
    merge(tmp_path, output, tasks=2)
    if suffix == ".npz":
        with np.load(output) as got:
            np.testing.assert_array_equal(got["y"], values)
    elif suffix == ".parquet":
        got = pyarrow.parquet.read_table(output)["y"].to_pylist()
        np.testing.assert_array_equal(np.array(got, values.dtype), values)
    else:
        table = pyarrow.csv.read_csv(output)
        flat = [np.array(c.to_pylist(), values.dtype) for c in table.columns]
        np.testing.assert_array_equal(np.stack(flat, 1), values.reshape(2, -1))


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
@pytest.mark.parametrize(
    ("name", "second", "message"),
    [
        ("names", {"z": np.zeros(2)}, r"has the outputs \['z'\], an earlier part \['y'\]"),
        ("shape", {"y": np.zeros((2, 1))}, r"shape \(1,\), earlier ones \(\)"),
        ("lengths", {"y": np.zeros(2), "x": np.zeros(1)}, "has the outputs"),
        ("scalar", {"y": np.float32(1)}, "do not have one row per record"),
    ],
)
def test_parts_that_do_not_fit_are_refused_and_nothing_is_written(
    tmp_path: Path, suffix: str, name: str, second: dict[str, np.ndarray], message: str
) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    save(parts, 0, y=np.zeros(2))
    save(parts, 1, **second)
    output = tmp_path / f"out{suffix}"
    output.write_text("before")
    with pytest.raises(JobFailedError, match=message):
        merge(parts, output, tasks=2)
    assert output.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == [output.name, "parts"]


def test_a_missing_and_a_damaged_part_are_named(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match="3 parts of 4 tasks"):
        merge(parts, tmp_path / "out.npz", tasks=4)
    part = parts / "part-000000000009.npz"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(JobFailedError, match=r"part-000000000009\.npz: damaged"):
        merge(parts, tmp_path / "out.npz", tasks=3)


def keep(folder: Path, task: int, table: pa.Table) -> None:
    with pa.ipc.new_stream(folder / f"part-{task:012d}.arrow", table.schema) as writer:
        writer.write_table(table)


def test_kept_columns_stand_before_the_predictions(parts: Path, tmp_path: Path) -> None:
    """The user of a file is a text with a null, and the item is an integer in one, a float in
    another."""
    keep(parts, 0, pa.table({"user": ["a", "b", None, "d"], "item": [1, 2, 3, 4]}))
    keep(parts, 9, pa.table({"user": ["e"], "item": [0.5]}))
    keep(
        parts,
        10,
        pa.table({"user": pa.array(["f", "g", "h"], pa.large_string()), "item": [6, 7, 8]}),
    )
    merge(parts, tmp_path / "out.csv", tasks=3)
    table = pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert table.column_names == ["user", "item", "score", "probs_0", "probs_1"]
    assert table["user"].to_pylist() == ["a", "b", "", "d", "e", "f", "g", "h"]
    assert table["item"].to_pylist() == [1, 2, 3, 4, 0.5, 6, 7, 8]
    assert table["score"].to_pylist() == list(range(8))
    merge(parts, tmp_path / "out.parquet", tasks=3)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["user", "item", "score", "probs"]
    assert table["user"].to_pylist()[:3] == ["a", "b", None]


def test_kept_columns_that_cannot_be_written_are_named(parts: Path, tmp_path: Path) -> None:
    for task, size in ((0, 4), (9, 1), (10, 3)):
        keep(parts, task, pa.table({"probs_0": range(size)}))
    with pytest.raises(JobFailedError, match="--keep probs_0: an output has a column of that name"):
        merge(parts, tmp_path / "out.csv", tasks=3)
    (parts / "part-000000000009.arrow").write_bytes(b"ARROW")
    with pytest.raises(JobFailedError, match="the columns of --keep"):
        merge(parts, tmp_path / "out.csv", tasks=3)

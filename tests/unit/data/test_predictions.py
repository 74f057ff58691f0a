from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from torch_edl.data.predictions import merge, write_part
from torch_edl.errors import ContractError, JobFailedError


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
    (folder / ".part-000000000010.arrow.77").write_bytes(b"ARROW1")
    return folder


def save(folder: Path, task: int, **arrays: np.ndarray) -> None:
    write_part(folder, task, arrays, None)


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
        np.array([b"a", b"bc"]),
        np.array([1.5, 2.5], np.float16),
        np.zeros((2, 3), np.float32, order="F"),
        np.array([2**63 - 1, -(2**63)], np.int64),
    ],
    ids=["matrix", "bool", "text", "nan", "bytes", "half", "fortran", "extreme"],
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
        ("names", {"z": np.zeros(2)}, r"has the columns \['z'\], an earlier part \['y'\]"),
        (
            "shape",
            {"y": np.zeros((2, 1))},
            r"y has incompatible types: double vs fixed_size_list<item: double>\[1\]",
        ),
        ("more", {"y": np.zeros(2), "x": np.zeros(2)}, "has the columns"),
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
    part = parts / "part-000000000009.arrow"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(JobFailedError, match=r"part-000000000009\.arrow: damaged"):
        merge(parts, tmp_path / "out.npz", tasks=3)


def test_kept_columns_stand_before_the_predictions(tmp_path: Path) -> None:
    """The user of a file is a text with a null, and the item is an integer in one, a float in
    another."""
    kept = [
        pa.table({"user": ["a", "b", None, "d"], "item": [1, 2, 3, 4]}),
        pa.table({"user": ["e"], "item": [0.5]}),
        pa.table({"user": pa.array(["f", "g", "h"], pa.large_string()), "item": [6, 7, 8]}),
    ]
    scores = np.split(np.arange(8), [4, 5])
    for task, (columns, score) in enumerate(zip(kept, scores, strict=True)):
        write_part(tmp_path, task, {"score": score, "probs": np.stack([score] * 2, 1)}, columns)
    merge(tmp_path, tmp_path / "out.csv", tasks=3)
    table = pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert table.column_names == ["user", "item", "score", "probs_0", "probs_1"]
    assert table["user"].to_pylist() == ["a", "b", "", "d", "e", "f", "g", "h"]
    assert table["item"].to_pylist() == [1, 2, 3, 4, 0.5, 6, 7, 8]
    assert table["score"].to_pylist() == list(range(8))
    merge(tmp_path, tmp_path / "out.parquet", tasks=3)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["user", "item", "score", "probs"]
    assert table["user"].to_pylist()[:3] == ["a", "b", None]


@pytest.mark.parametrize(
    ("outputs", "kept", "message"),
    [
        ({"y": np.zeros(2)}, {"y": [1, 2]}, "--keep y: the model has an output of that name"),
        ({"y": np.zeros(2)}, {"x": [1]}, "--keep: 2 predictions for 1 records"),
        ({"y": np.zeros(2), "z": np.zeros(1)}, None, "do not have one row per record"),
        ({"y": np.zeros(2, np.complex64)}, None, "output 'y' of dtype complex64"),
    ],
)
def test_outputs_that_cannot_be_written_are_named(
    tmp_path: Path, outputs: dict[str, np.ndarray], kept: dict[str, list[int]] | None, message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        write_part(tmp_path, 0, outputs, None if kept is None else pa.table(kept))
    assert list(tmp_path.iterdir()) == []


def test_two_columns_of_a_name_are_refused(tmp_path: Path) -> None:
    write_part(tmp_path, 0, {"probs": np.zeros((1, 2))}, pa.table({"probs_0": [1]}))
    with pytest.raises(JobFailedError, match="two columns have the name 'probs_0'"):
        merge(tmp_path, tmp_path / "out.csv", tasks=1)


def test_an_output_of_empty_rows(tmp_path: Path) -> None:
    save(tmp_path, 0, y=np.zeros((2, 3, 0), np.int32))
    assert merge(tmp_path, tmp_path / "out.npz", tasks=1) == 2
    with np.load(tmp_path / "out.npz") as got:
        assert (got["y"].shape, got["y"].dtype) == ((2, 3, 0), np.int32)


def test_a_task_that_is_repeated_replaces_its_part(tmp_path: Path) -> None:
    save(tmp_path, 0, y=np.zeros(3))
    save(tmp_path, 0, y=np.ones(2))
    assert merge(tmp_path, tmp_path / "out.npz", tasks=1) == 2
    with np.load(tmp_path / "out.npz") as got:
        assert got["y"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_without_tasks_the_output_is_empty(tmp_path: Path, suffix: str) -> None:
    assert merge(tmp_path, tmp_path / f"out{suffix}", tasks=0) == 0
    assert (tmp_path / f"out{suffix}").exists()

"""Sources in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from torch_edl.data.sources import IndexedSource
from torch_edl.errors import UsageError
from torch_edl.pytorch.batches import open_batches


class Lazy(Sequence[bytes]):
    """Makes its records when they are asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]
        self.asked.append(place)
        return b"%d" % place


def test_a_lazy_sequence_is_asked_for_what_is_read_only() -> None:
    records = Lazy()
    source = IndexedSource(records, name="lazy")
    assert source.count == 1_000_000_000
    assert source.read(999_999_997, 1_000_000_000) == [b"999999997", b"999999998", b"999999999"]
    assert records.asked == [999_999_997, 999_999_998, 999_999_999]
    assert source.metadata.path == source.name == "lazy"


def test_a_table_is_sliced_without_copying() -> None:
    table = pa.table({"a": list(range(1000))})
    source = IndexedSource(table)
    assert source.metadata.column_names == ("a",)
    assert source.metadata.column_types == ("int64",)
    part = source.read(10, 20)
    assert part["a"].to_pylist() == list(range(10, 20))
    mine, theirs = (t["a"].chunk(0).buffers()[1].address for t in (part, table))
    assert mine == theirs


FRAME = pd.DataFrame({"user": ["a", "b", None], "x": [1.0, 2.0, 3.0]}, index=[7, 8, 9])


def test_a_data_frame_is_its_rows() -> None:
    source = IndexedSource(FRAME, "frame")
    assert source.count == 3
    assert source.metadata.column_names == ("user", "x")
    records: Any = source.read(1, 3)
    assert records.to_pylist() == [{"user": "b", "x": 2.0}, {"user": None, "x": 3.0}]


def test_a_column_of_several_types_is_named() -> None:
    with pytest.raises(UsageError, match=r"the data frame: .*column u .*give each column values"):
        IndexedSource(pd.DataFrame({"u": ["a", 1]}))


@pytest.mark.parametrize(
    "data", [FRAME, pa.table({"user": FRAME["user"].array, "x": [1.0, 2.0, 3.0]})]
)
def test_the_rows_of_a_table_are_batches(data: Any) -> None:
    """A frame is indexed by the names of its columns, and a table by their numbers."""
    data_of = {"batch_size": 2, "epochs": 1, "seed": 0, "shuffle": True}
    batches = open_batches(data, data_of, 0, {})
    made = [batches.sample((0, 2)), batches.sample((2, 3))]
    assert sorted(x for batch in made for x in batch["x"].tolist()) == [1.0, 2.0, 3.0]
    rows = [pair for b in made for pair in zip(b["user"], b["x"].tolist(), strict=True)]
    assert sorted(rows, key=lambda row: row[1]) == [("a", 1.0), ("b", 2.0), (None, 3.0)]

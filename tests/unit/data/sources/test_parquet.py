"""Parquet: a range reads only its row groups; damage is named by row group."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from torch_edl.data.sources import parquet as module
from torch_edl.data.sources.parquet import ParquetSource
from torch_edl.errors import DataError

TABLE = pa.table({"id": list(range(50)), "tags": [[i, i + 1] for i in range(50)]})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet"
    parquet.write_table(TABLE, path, row_group_size=10, write_page_checksum=True, compression=None)
    return path


def spoil(path: Path, group: int) -> None:
    """Flips a byte in the data of column ``id`` of a row group."""
    column = parquet.read_metadata(path).row_group(group).column(0)
    raw = bytearray(path.read_bytes())
    raw[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(raw)


def test_columns_keep_their_types(file: Path) -> None:
    source = ParquetSource(str(file))
    assert source.metadata.column_names == ("id", "tags")
    assert source.metadata.column_types == ("int64", "list<element: int64>")
    assert source.read(8, 31).equals(TABLE.slice(8, 23))
    assert source.read(3, 3).schema.equals(TABLE.schema)


def test_a_range_reads_only_its_row_groups(file: Path) -> None:
    spoil(file, 2)
    source = ParquetSource(str(file))
    assert source.count == 50
    assert source.read(0, 20).equals(TABLE.slice(0, 20))
    assert source.read(30, 50).equals(TABLE.slice(30, 20))
    with pytest.raises(DataError, match="row group 2") as caught:
        source.read(19, 21)
    assert caught.value.path == str(file)


def test_damaged_row_groups_are_left_out_and_their_rows_counted(file: Path) -> None:
    spoil(file, 0)
    spoil(file, 3)
    source = ParquetSource(str(file), skip_damaged=True)
    assert (source.count, source.damaged) == (30, 20)
    assert source.read(0, 30)["id"].to_pylist() == [*range(10, 30), *range(40, 50)]


@pytest.mark.parametrize("cut", [1, 4, 8, 200])
def test_a_file_that_was_cut_is_no_parquet_file(file: Path, cut: int) -> None:
    file.write_bytes(file.read_bytes()[:-cut])
    for skip in (False, True):
        with pytest.raises(DataError, match="not a whole Parquet file"):
            ParquetSource(str(file), skip_damaged=skip)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet.write_table(twice, path)
    with pytest.raises(DataError, match="column 'a' appears twice"):
        ParquetSource(str(path))


def test_row_groups_that_slow_training_down_are_told(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ParquetSource(str(file))
        assert caplog.records == []
        monkeypatch.setattr(module, "LARGE_ROW_GROUP_BYTES", 100)
        ParquetSource(str(file))
    assert "smaller row_group_size" in caplog.text

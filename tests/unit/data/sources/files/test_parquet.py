"""Parquet: a range reads only its row groups; damage is named by row group."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from torch_edl.data.sources.files import parquet as module
from torch_edl.data.sources.files import sliced
from torch_edl.data.sources.files.blocks import BlockCache
from torch_edl.data.sources.files.parquet import ParquetSource
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


# ---- large row groups ----

_LARGE = 1 << 20  # rows, as pyarrow and others write them by default


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row group of 80 MB, and a small one."""
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    ids = np.random.default_rng(0).integers(0, 2**60, _LARGE + 1000)
    parquet.write_table(pa.table({f"c{i}": ids + i for i in range(10)}), path)
    assert parquet.read_metadata(path).num_row_groups == 2
    return path


_READ = """
import sys
import numpy as np, pyarrow as pa
from torch_edl.data.sources.files.parquet import ParquetSource
source = ParquetSource(sys.argv[1])
for start in (900_000, 0, 500_000, source.count - 1500):
    rows = source.read(start, start + 1500)
    ids = np.random.default_rng(0).integers(0, 2**60, source.count)[start : start + 1500]
    for number, column in enumerate(rows.columns):
        assert (column.to_numpy() == ids + number).all()
print(pa.default_memory_pool().max_memory(), pa.default_memory_pool().bytes_allocated())
"""


def test_a_large_row_group_is_never_whole_in_memory(large: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(large)], capture_output=True, text=True, check=True
    )
    most, last = map(int, done.stdout.split())
    assert most < 50 << 20
    assert last < 1 << 20


def test_a_large_row_group_is_decoded_once(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ParquetSource(str(large))
    expected = source.read(0, 100)
    monkeypatch.delattr(ParquetSource, "slices")
    assert source.read(0, 100).equals(expected)
    assert len(source.read(700_000, 800_000)) == 100_000


def test_without_room_for_temporary_files_the_rows_are_the_same(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sliced, "SPILL_ABOVE_BYTES", 0)
    monkeypatch.setattr(module, "SLICE_BYTES", 60)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    source = ParquetSource(str(file))
    for start in range(0, source.count, 7):
        end = min(start + 13, source.count)
        assert source.read(start, end).equals(TABLE.slice(start, end - start))
    assert "set TMPDIR to a folder with room" in caplog.text


def _unnamed_files(folder: Path) -> list[str]:
    """What this process has open in a folder where it has no name."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # of other threads, and that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(f"{folder}/") and path.endswith("(deleted)")]


def test_what_is_on_disk_is_bounded(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sliced, "SPILL_ABOVE_BYTES", 0)
    monkeypatch.setattr(sliced, "_spills", BlockCache(1, releases=False))
    source = ParquetSource(str(file))
    for _ in range(2):
        assert source.read(0, source.count).equals(TABLE)
    assert len(_unnamed_files(tmp_path)) == 1

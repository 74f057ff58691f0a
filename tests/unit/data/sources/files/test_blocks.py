"""Decoded blocks are kept within a budget, and used again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.files import blocks
from torch_edl.data.sources.files.blocks import BlockCache, BlockSource, Index
from torch_edl.interfaces import Records


class Lines(BlockSource):
    """Blocks of ten records of 1,000 bytes; counts what it decodes."""

    kind = "lines"

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.decoded: list[int] = []

    def scan(self, file: DataFile) -> Index:
        return Index.of((start, 10_000, 10) for start in range(0, 100_000, 10_000))

    def decode(self, file: DataFile, offset: int, length: int, count: int) -> Records:
        self.decoded.append(offset // length)
        raw = file.read_at(offset, length)
        return [raw[i : i + 1000] for i in range(0, length, 1000)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(blocks, "cache", BlockCache(1 << 20, releases=True))
    path = tmp_path / "lines"
    path.write_bytes(np.repeat(np.arange(100, dtype=np.uint8), 1000).tobytes())
    return path


def test_consecutive_ranges_decode_each_block_once(path: Path) -> None:
    source = Lines(path)
    for start in range(0, 100, 3):
        records = source.read(start, min(start + 3, 100))
        assert [record[0] for record in records] == list(range(start, min(start + 3, 100)))
    assert source.decoded == list(range(10))


def test_a_range_decodes_no_block_beside_it(path: Path) -> None:
    source = Lines(path)
    source.read(10, 20)
    source.read(39, 41)
    source.read(50, 50)
    assert source.decoded == [1, 3, 4]


def test_the_budget_holds_and_the_last_used_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks.cache, "limit", 35_000)  # Three blocks.
    source = Lines(path)
    for block in (0, 1, 2, 0, 3):
        source.read(block * 10, block * 10 + 1)
    assert source.decoded == [0, 1, 2, 3]
    source.read(0, 1)
    assert source.decoded == [0, 1, 2, 3]
    source.read(10, 11)  # It was the least recently used.
    assert source.decoded == [0, 1, 2, 3, 1]


def test_a_block_beyond_the_budget_is_still_kept_while_it_is_the_newest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks.cache, "limit", 1)
    source = Lines(path)
    source.read(0, 4)
    source.read(4, 10)
    assert source.decoded == [0]


def test_a_block_is_let_go_when_all_of_it_was_read(path: Path) -> None:
    source = Lines(path)
    source.read(5, 40)  # half of the first block is left
    assert source.decoded == [0, 1, 2, 3]
    assert blocks.cache.bytes == 10 * (1000 + 64)
    source.read(0, 5)
    assert source.decoded == [0, 1, 2, 3]
    assert blocks.cache.bytes == 0
    assert source.read(0, 40) == source.read(0, 40)


def test_two_sources_of_one_path_do_not_mix(path: Path) -> None:
    first = Lines(path)
    assert first.read(0, 1) == [b"\0" * 1000]
    path.write_bytes(b"\7" * 100_000)
    second = Lines(path)
    assert second.read(0, 1) == [b"\7" * 1000]


def test_what_a_caller_does_to_its_list_is_its_own(path: Path) -> None:
    source = Lines(path)
    records = source.read(0, 10)
    assert isinstance(records, list)
    records.clear()
    assert len(source.read(0, 10)) == 10

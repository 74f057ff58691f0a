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


THREES = [(start, min(start + 3, 100)) for start in range(0, 100, 3)]


@pytest.mark.parametrize(
    ("limit", "reads", "decoded", "left"),
    [
        pytest.param(1 << 20, THREES, [*range(10)], 0, id="consecutive-ranges"),
        pytest.param(1 << 20, [(10, 20), (39, 41), (50, 50)], [1, 3, 4], 2, id="no-block-beside"),
        pytest.param(1 << 20, [(5, 40)], [0, 1, 2, 3], 1, id="whole-blocks-are-released"),
        pytest.param(1 << 20, [(5, 40), (0, 5)], [0, 1, 2, 3], 0, id="in-two-parts"),
        pytest.param(
            35_000,  # three blocks
            [(10 * block, 10 * block + 1) for block in (0, 1, 2, 0, 3, 0, 1)],
            [0, 1, 2, 3, 1],
            3,
            id="least-recently-used",
        ),
        pytest.param(1, [(0, 4), (4, 10)], [0], 0, id="newest"),
    ],
)
def test_blocks_are_decoded_once_and_kept_within_a_limit(
    path: Path, limit: int, reads: list[tuple[int, int]], decoded: list[int], left: int
) -> None:
    blocks.cache.limit = limit
    source = Lines(path)
    for start, end in reads:
        assert [record[0] for record in source.read(start, end)] == list(range(start, end))
    assert source.decoded == decoded
    assert blocks.cache.bytes == left * 10 * (1000 + 64)


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

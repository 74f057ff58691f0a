"""Sources in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from torch_edl.data.sources import IndexedSource


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

"""Transactions leave offsets without messages: each message is read once, however it is cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tansu_server import Tansu
from torch_edl.data.sources import open_source, parts
from torch_edl.errors import DataError
from torch_edl.plugins.kafka.source import KafkaSource

SIZES = [5, 1, 1, 3, 40]
COUNT = sum(SIZES)
END = COUNT + len(SIZES)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = Tansu(tmp_path_factory.mktemp("tansu"), numbers=1)
    first = 0
    for size in SIZES:
        broker.commit("numbers", 0, [b"%d" % n for n in range(first, first + size)])
        first += size
    yield broker.url("numbers")
    broker.stop()


@pytest.mark.parametrize("size", [1, 2, 7, 30, END])
def test_each_message_is_in_one_range(url: str, size: int) -> None:
    assert KafkaSource.offsets([url]) == {f"{url}/0": (0, END)}
    source = open_source(f"{url}/0")
    found = [source.read(start, min(start + size, END)) for start in range(0, END, size)]
    assert [int(value) for part in found for value in part] == list(range(COUNT))
    # In another order, and again.
    starts = range(0, END, size)
    again = {start: source.read(start, min(start + size, END)) for start in reversed(starts)}
    assert [again[start] for start in starts] == found


def test_a_range_may_be_a_mark_alone(url: str) -> None:
    assert open_source(f"{url}/0").read(5, 6) == []
    assert open_source(f"{url}/0").read(END - 1, END) == []


def test_data_with_an_end_have_no_gaps(url: str) -> None:
    (name,) = parts([url])
    assert open_source(name).read(0, 5) == [b"%d" % n for n in range(5)]
    with pytest.raises(DataError, match="5 messages at the 6 offsets from 0: there are gaps"):
        open_source(name).read(0, 6)

"""Names of topics, and topics that are not whole: removed, compacted, or with transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from master.runtime.scan import count
from tests.kafka_server import Kafka
from tests.tansu_server import Tansu
from torch_edl.config import DataConfig, JobConfig, TrainConfig
from torch_edl.data.sources import check_source, open_source, parts
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import ENDLESS
from torch_edl.plugins.kafka import source as module
from torch_edl.plugins.kafka.source import ENV_CONFIG, KafkaSource, properties


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    broker = Kafka("numbers:3", "removed:1")
    for partition in range(3):
        broker.produce("numbers", partition, (b"%d" % n for n in range(partition * 10)))
    yield broker
    broker.stop()


def test_a_file_says_how_to_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    monkeypatch.setenv(ENV_CONFIG, str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        properties("h")
    file.write_text("# how\nsasl.password = hush=1\n\nsecurity.protocol=SASL_SSL\n")
    found = properties("h")
    assert found["sasl.password"] == "hush=1"
    assert found["bootstrap.servers"] == "h"
    file.write_text("hush\n")
    with pytest.raises(UsageError, match="line 1: expected NAME=VALUE") as raised:
        properties("h")
    assert "hush" not in str(raised.value)


def test_a_topic_has_a_source_for_each_partition(kafka: Kafka) -> None:
    url = kafka.url("numbers")
    names = [f"{url}/{n}#first=0&end={n * 10}" for n in range(3)]
    assert parts([url]) == names
    assert parts([f"{url}/2"]) == names[2:]
    assert parts(names) == names
    assert open_source(names[2]).read(18, 20) == [b"18", b"19"]
    with pytest.raises(UsageError, match="a source is one partition"):
        open_source(url)
    assert KafkaSource.offsets([url]) == {f"{url}/{n}": (0, n * 10) for n in range(3)}


def test_a_topic_that_is_not_there_is_named(kafka: Kafka) -> None:
    with pytest.raises(DataError, match=r"none: .*Unknown topic"):
        parts([kafka.url("none")])
    with pytest.raises(DataError, match=r"none: .*Unknown topic"):
        check_source(kafka.url("none"))
    url = kafka.url("numbers")
    check_source(f"{url}/2")
    with pytest.raises(DataError, match="no partition 3 among the 3 of the topic"):
        check_source(f"{url}/3")


def test_no_broker(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "SAY_S", 0.1)
    monkeypatch.setattr(module, "ASK_S", 0.2)
    with pytest.raises(DataError, match=r"kafka://127\.0\.0\.1:1/t"):
        parts(["kafka://127.0.0.1:1/t"])
    assert "kafka://127.0.0.1:1/t: no answer of the brokers after 0.1 s; waiting" in caplog.text


def test_a_stream_has_no_end(kafka: Kafka) -> None:
    source = open_source(kafka.url("numbers") + "/2")
    assert source.count == ENDLESS
    assert source.read(5, 7) == [b"5", b"6"]
    assert source.read(7, 9) == [b"7", b"8"]
    assert source.read(0, 1) == [b"0"]


def test_a_message_without_a_value_is_an_empty_record(kafka: Kafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    producer.produce("numbers", None, partition=0)
    assert producer.flush(30) == 0
    assert open_source(kafka.url("numbers") + "/0#first=0&end=1").read(0, 1) == [b""]


def test_what_the_brokers_removed(kafka: Kafka) -> None:
    """A partition of this broker keeps 5 MB."""
    kafka.produce("removed", 0, (b"%d" % n + b" " * 900_000 for n in range(12)))
    url = kafka.url("removed")
    ((first, end),) = KafkaSource.offsets([url]).values()
    assert first > 0
    assert end == 12
    message = f"the offsets 0 to {first - 1} were removed before they were read"
    with pytest.raises(DataError, match=message):
        open_source(f"{url}/0").read(0, 12)
    tolerant = open_source(f"{url}/0", skip_damaged=True)
    records = tolerant.read(0, 12)
    assert isinstance(records, list)
    assert [int(record) for record in records] == list(range(first, 12))
    assert tolerant.read(0, 1) == []
    # Indices of a part that has an end are places in it.
    with pytest.raises(DataError, match="messages at the 12 offsets"):
        open_source(f"{url}/0#first=0&end=12", skip_damaged=True).read(0, 12)


# ---- topics that brokers compact: a task may lose messages between attempts ----


@pytest.fixture(scope="module", params=["compact", "compact,delete"])
def compacted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    broker = Tansu(tmp_path_factory.mktemp("tansu"), policy=request.param, numbers=1)
    yield broker.url("numbers")
    broker.stop()


def test_a_compacted_topic_is_no_stream(compacted: str) -> None:
    with pytest.raises(DataError, match=r"/numbers: cleanup.policy=compact.*not compacted"):
        KafkaSource.check_stream(compacted)


def test_the_master_refuses_it_as_well(compacted: str) -> None:
    """A client outside of the cluster may not reach the brokers."""
    data = DataConfig(train=(compacted,), epochs=0)
    found = count(
        JobConfig(name="j", model_file="/m.py", data=data, train=TrainConfig(strategy="ps"))
    )
    assert "cleanup.policy=compact" in found.error


def test_any_other_topic_is_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Tansu(tmp_path, numbers=2)
    try:
        KafkaSource.check_stream(broker.url("numbers"))
        with pytest.raises(DataError, match="no partition 2"):
            KafkaSource.check_stream(broker.url("numbers") + "/2")
    finally:
        broker.stop()


def test_brokers_that_do_not_tell_are_believed() -> None:
    """The attempts on a task compare how many messages it has."""
    broker = Kafka("numbers:1")
    try:
        KafkaSource.check_stream(broker.url("numbers"))
    finally:
        broker.stop()


# ---- transactions leave offsets without messages ----


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

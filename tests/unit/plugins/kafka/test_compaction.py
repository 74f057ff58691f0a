"""A topic that brokers compact is no stream: a task of it may lose messages between attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from master.runtime.scan import count
from tests.kafka_server import Kafka
from tests.tansu_server import Tansu
from torch_edl.config import DataConfig, JobConfig, TrainConfig
from torch_edl.errors import DataError
from torch_edl.plugins.kafka.source import KafkaSource


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

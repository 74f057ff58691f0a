"""A broker for tests, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer

from tests.waiting import HANG_S


class Kafka:
    """The process of a broker with some topics.

    Args:
        topics: each ``NAME:PARTITIONS``.
    """

    def __init__(self, *topics: str) -> None:
        program = Path(__file__).with_name("kafka_broker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), *topics],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the broker did not start"

    def url(self, topic: str) -> str:
        """The name of a topic for ``--data``."""
        return f"kafka://{self.address}/{topic}"

    @staticmethod
    def at(address: str) -> Kafka:
        """A broker that another process, or test, started."""
        found = Kafka.__new__(Kafka)
        found.address = address
        return found

    def produce(self, topic: str, partition: int, values: Iterable[bytes]) -> None:
        """Appends messages, and waits until the broker has them."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 1, "log_level": 0})
        producer.list_topics(topic, timeout=HANG_S)  # which makes it
        for value in values:
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    def stop(self) -> None:
        """Ends the process; the messages are gone with it."""
        self._process.communicate()

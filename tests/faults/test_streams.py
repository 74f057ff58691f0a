"""Jobs on a stream that a producer fills meanwhile are hurt; every record is counted once."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import KEEP, TASKS
from tests.kafka_server import Kafka
from tests.tansu_server import Tansu

MODEL = Path(__file__).with_name("counting_stream_model.py")
RECORDS = 3000
PARTITIONS = 3
STREAM = ["--epochs", "stream", *TASKS, "--workers", "2"]


class Producer:
    """Appends the numbers below a bound, each to one of the partitions."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._next = 0

    def up_to(self, bound: int) -> None:
        for partition in range(PARTITIONS):
            numbers = range(self._next, bound)
            values = [b"%d" % n for n in numbers if n % 7 % PARTITIONS == partition]
            self._kafka.produce("numbers", partition, values)
        self._next = bound


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    broker = Kafka(f"numbers:{PARTITIONS}")
    yield broker
    broker.stop()


@pytest.mark.slow
def test_a_stream_ends_after_its_last_record(start_job: Callable[..., Any], kafka: Kafka) -> None:
    producer = Producer(kafka)
    producer.up_to(500)
    flags = [*STREAM, "--max-records", "1000"]
    job = start_job(1000, *flags, data=kafka.url("numbers"), model=MODEL)
    job.wait_for(lambda: job.done() == 500)
    assert job.status().state == "running"
    producer.up_to(1000)
    job.check()


@pytest.mark.slow
def test_records_of_transactions_are_counted_once(
    start_job: Callable[..., Any], tmp_path: Path
) -> None:
    """Their marks take offsets, which are in tasks and are no records."""
    broker = Tansu(tmp_path, numbers=1)
    try:
        bounds = [0, 1, 2, 40, 41, 200, 500, 501, 600]
        for first, end in itertools.pairwise(bounds[:5]):
            broker.commit("numbers", 0, [b"%d" % n for n in range(first, end)])
        flags = [*STREAM, "--records-per-task", "16", "--max-records", str(600 + len(bounds) - 1)]
        job = start_job(600, *flags, data=broker.url("numbers"), model=MODEL)
        job.wait_for(lambda: job.done() == 41 + 4)
        for first, end in itertools.pairwise(bounds[4:]):
            broker.commit("numbers", 0, [b"%d" % n for n in range(first, end)])
            job.kill("worker")
        job.check()
    finally:
        broker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_every_process_is_killed_while_a_producer_fills_the_stream(
    start_job: Callable[..., Any], kafka: Kafka, durability: str
) -> None:
    producer = Producer(kafka)
    producer.up_to(50)
    flags = [*STREAM, "--ps", "2", "--durability", durability, "--max-records", str(RECORDS)]
    job = start_job(RECORDS, *flags, *KEEP, data=kafka.url("numbers"), model=MODEL)
    job.wait_for(lambda: job.done() == 50)
    filled = threading.Event()

    def fill() -> None:
        for bound in range(100, RECORDS + 1, 50):
            producer.up_to(bound)
            filled.wait(0.05)
        filled.set()

    thread = threading.Thread(target=fill)
    thread.start()
    for done, role in [(300, "worker"), (700, "master"), (1100, "ps"), (1500, "master")]:
        job.wait_for(lambda done=done: job.done() > done)
        job.kill(role, 2)
    job.wait_for(lambda: job.done() > 1800)
    for role in ("master", "ps", "worker"):
        job.kill(role, 2)
    job.check()
    thread.join()


@pytest.mark.slow
def test_a_stopped_stream_goes_on_from_its_checkpoint(
    start_job: Callable[..., Any], kafka: Kafka
) -> None:
    """With records that came while no job ran, and other numbers of servers and workers."""
    producer = Producer(kafka)
    producer.up_to(RECORDS // 2)
    url = kafka.url("numbers")
    first = start_job(RECORDS, *STREAM, *KEEP, "--ps", "2", data=url, model=MODEL, name="first")
    first.wait_for(lambda: first.done() > 300 and first.status().checkpoint)
    first.process.send_signal(signal.SIGINT)
    assert first.finish(60) == 130
    producer.up_to(RECORDS)
    flags = [*STREAM, *KEEP, "--ps", "3", "--resume", "--max-records", str(RECORDS)]
    second = start_job(RECORDS, *flags, data=url, model=MODEL, name="second")
    second.check()


@pytest.mark.slow
def test_the_local_worker_and_the_master_are_killed(
    start_job: Callable[..., Any], kafka: Kafka
) -> None:
    """The worker held the model: the next one continues from the last checkpoint, and its plan."""
    producer = Producer(kafka)
    producer.up_to(RECORDS // 2)
    flags = [*STREAM[:-2], "--strategy", "local", "--max-records", str(RECORDS)]
    url = kafka.url("numbers")
    job = start_job(RECORDS, *flags, *KEEP, data=url, model=MODEL)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    job.kill("worker")
    job.wait_for(lambda: job.done() > 700)
    job.kill("master")
    producer.up_to(RECORDS)
    job.wait_for(lambda: job.done() > 1700)
    job.kill("worker")
    job.kill("master")
    job.check()


@pytest.mark.slow
def test_messages_that_are_removed_from_a_task_in_hand_are_noticed(
    start_job: Callable[..., Any],
) -> None:
    """A worker is killed in the middle of a task whose first messages brokers remove meanwhile."""
    broker = Kafka("numbers:1")  # keeps 5 MB
    try:
        broker.produce("numbers", 0, (b"%d" % n + b" " * 60_000 for n in range(64)))
        flags = [*STREAM[:-1], "1", "--ps", "1", "--skip-damaged", "--max-records", "64"]
        url = broker.url("numbers")
        job = start_job(64, *flags, delay_s=0.3, data=url, model=MODEL)
        job.wait_for(lambda: job.done() >= 8)
        job.kill("worker")
        broker.produce("numbers", 0, [b"0" + b" " * 900_000] * 2)
        job.end_well()
        told = job.report()
        assert "had 64 messages in an earlier attempt on this task" in told
        assert "the rest of the task is left out" in told
        rows = load_file(job.output / "embeddings" / "rows.safetensors")["vectors"]
        assert set(rows.flat) == {0.0, 1.0}
        assert rows[:, 0].sum() % 8 == 0
    finally:
        broker.stop()

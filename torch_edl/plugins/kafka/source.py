"""Partitions of Kafka topics: a record is the value of a message, by its offset.

A source is named ``kafka://host:9092,host2:9092/topic``, ``.../topic/3``,
``.../topic/3#first=0&end=40``. The user writes a topic, and a job adds the rest. TLS, users and
passwords are configured in a file of librdkafka's properties, whose path is in
``TORCH_EDL_KAFKA_CONFIG``.

A range of offsets is read like a part of a file. A stream has no end, so the number of its records
is unknown. A range of a stream has fewer records than offsets if the topic has gaps (marks of
transactions, messages of aborted transactions).
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
)

from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import ENDLESS, Metadata, Records, UrlSource

log = logging.getLogger(__name__)

ENV_CONFIG = "TORCH_EDL_KAFKA_CONFIG"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_EXAMPLE = "write for example kafka://host:9092/topic"

ASK_S = 20.0
"""Seconds to wait for an answer of the brokers about a topic."""

_POLICY_S = 3.0
"""Seconds to wait for the policy of a topic, which is only needed to reject a job early."""

SAY_S = 3.0
"""Seconds after which a warning about the wait is logged."""

READ_S = 60.0
"""Seconds that a read waits for the next message."""

_MESSAGES = 2000  # maximum number of messages per call
_POLL_S = 0.05  # time limit of a call, which returns fewer messages if the topic has gaps


@dataclass(frozen=True, kw_only=True)
class KafkaName:
    """The parts of a name."""

    servers: str
    """Address ``host:port``, or several separated by commas."""
    topic: str
    partition: int | None = None
    """Number of the partition; None: all partitions."""
    offsets: tuple[int, int] | None = None
    """First offset, and the offset after the last one; None: a stream without an end."""

    def __str__(self) -> str:
        text = f"kafka://{self.servers}/{self.topic}"
        if self.partition is not None:
            text += f"/{self.partition}"
        if self.offsets is not None:
            text += f"#first={self.offsets[0]}&end={self.offsets[1]}"
        return text


def parse(text: str) -> KafkaName:
    """Parse a name that a user or a job wrote, without a request to a server.

    Raises:
        UsageError: a part is missing or invalid. The message shows no password.
    """
    url, _, fragment = text.removeprefix("kafka://").partition("#")
    servers, _, path = url.partition("/")
    if "@" in servers:
        raise UsageError(
            f"kafka://...@{servers.rpartition('@')[2]}: a user and a password would be seen in "
            f"logs; write them into a file of librdkafka's properties that {ENV_CONFIG} names"
        )
    topic, _, number = path.partition("/")
    if not servers or not _TOPIC.fullmatch(topic):
        raise UsageError(f"{text}: expected servers and a topic; {_EXAMPLE}")
    parts = dict(parse_qsl(fragment, keep_blank_values=True))
    ends = parts.get("first", ""), parts.get("end", "")
    if (number and not number.isdecimal()) or (
        fragment and (set(parts) != {"first", "end"} or not all(map(str.isdecimal, ends)))
    ):
        raise UsageError(f"{text}: expected .../topic/PARTITION#first=N&end=N; {_EXAMPLE}")
    if fragment and (not number or int(ends[0]) > int(ends[1])):
        raise UsageError(f"{text}: offsets are of a partition, and first is at most end")
    return KafkaName(
        servers=servers,
        topic=topic,
        partition=int(number) if number else None,
        offsets=(int(ends[0]), int(ends[1])) if fragment else None,
    )


def properties(servers: str) -> dict[str, str]:
    """Return the configuration of a client of librdkafka.

    Raises:
        UsageError: the file of properties cannot be read. The message shows no line of the file.
    """
    found = {}
    path = os.environ.get(ENV_CONFIG, "")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{ENV_CONFIG} {path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        key, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            raise UsageError(f"{ENV_CONFIG} {path}: line {number}: expected NAME=VALUE")
        found[key.strip()] = value.strip()
    return {**found, "bootstrap.servers": servers}


_CONSUMER = {
    "group.id": "torch-edl",  # no offset is committed for this group
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "check.crcs": True,
    "fetch.wait.max.ms": 5,  # a seek waits for the fetch in progress
    "queued.max.messages.kbytes": 16384,
}


def offsets_of(name: KafkaName) -> dict[int, tuple[int, int]]:
    """Return the offsets of the first record and after the last one, by partition of a topic; raise
    DataError if no broker answers or the topic does not exist."""
    earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    try:
        topics, client = _clients(name.servers, os.getpid())
        found = _listed(topics, name).topics[name.topic]
        if found.error is not None:
            raise DataError(str(name), f"{found.error.str()}; check the topic")
        partitions = [TopicPartition(name.topic, number) for number in found.partitions]
        ends = []
        for spec in (earliest, latest):
            answers = client.list_offsets(
                dict.fromkeys(partitions, spec),
                request_timeout=ASK_S,
                isolation_level=IsolationLevel.READ_COMMITTED,
            )
            ends.append({key.partition: answer.result().offset for key, answer in answers.items()})
    except KafkaException as error:
        raise DataError(str(name), error.args[0].str()) from None
    first, last = ends
    return {number: (first[number], last[number]) for number in sorted(first)}


def _listed(client: Consumer, name: KafkaName) -> Any:
    try:
        return client.list_topics(name.topic, timeout=SAY_S)
    except KafkaException:
        log.warning(
            "%s: no answer of the brokers after %g s; waiting up to %g s more",
            name,
            SAY_S,
            ASK_S - SAY_S,
        )
        return client.list_topics(name.topic, timeout=ASK_S - SAY_S)


@functools.lru_cache(maxsize=8)
def _clients(servers: str, process: int) -> tuple[Consumer, AdminClient]:
    """Return clients for metadata; a consumer is used since its requests create no topic."""
    settings = properties(servers)
    return (
        Consumer({**_CONSUMER, **settings}, logger=log),
        AdminClient({**settings}, logger=log),
    )


class KafkaSource(UrlSource):
    """The messages of a partition, by their offsets.

    Args:
        name: name of a range of offsets, whose records are numbered from 0; or of a partition
            without an end, whose records are numbered by their offsets.
        skip_damaged: skip offsets that the brokers have removed.

    Raises:
        UsageError: the name is invalid, or names a whole topic.
    """

    endless = True

    def __init__(self, name: str, *, skip_damaged: bool = False) -> None:
        self._name = parse(name)
        if self._name.partition is None:
            raise UsageError(f"{name}: a source is one partition of it: {name}/0")
        self.name = str(self._name)
        self.damaged = 0
        self.metadata = Metadata(self.name)
        self._endless = self._name.offsets is None
        self._first, end = self._name.offsets or (0, ENDLESS)
        self.count = end - self._first
        self._skip_damaged = skip_damaged
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._process = 0
        # Offset of the next message of the consumer; -1: no partition is assigned.
        self._position = -1

    @classmethod
    def canonical(cls, url: str) -> str:
        return str(parse(url))

    @classmethod
    def check(cls, url: str) -> None:
        name = parse(url)
        there = offsets_of(name)
        if name.partition not in (None, *there):
            raise DataError(
                url,
                f"no partition {name.partition} among the {len(there)} of the topic; check the "
                "number",
            )

    @classmethod
    def check_stream(cls, url: str) -> None:
        cls.check(url)
        name = parse(url)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name.topic)
        admin = _clients(name.servers, os.getpid())[1]
        (answer,) = admin.describe_configs([resource], request_timeout=_POLICY_S).values()
        try:
            policy = answer.result().get("cleanup.policy")
        except KafkaException as error:
            # Without the right to describe the topic, retries of a task compare their messages
            # instead.
            log.info("%s: cleanup.policy is not known: %s", name, error.args[0].str())
            return
        if policy is not None and "compact" in str(policy.value):
            raise DataError(
                str(name),
                f"cleanup.policy={policy.value}: brokers remove messages from the middle of the "
                "topic, and a task that is read again may have other messages; set "
                "cleanup.policy=delete, or copy the messages to a topic that is not compacted",
            )

    @classmethod
    def parts(cls, url: str) -> list[str]:
        """Return the names of the partitions of a topic, with their current offsets.

        A name with offsets has itself as its only part.
        """
        name = parse(url)
        if name.offsets is not None:
            return [url]
        return [
            str(replace(name, partition=number, offsets=offsets))
            for number, offsets in offsets_of(name).items()
            if name.partition in (None, number)
        ]

    @classmethod
    def offsets(cls, urls: Sequence[str]) -> dict[str, tuple[int, int]]:
        return {
            str(replace(topic, partition=number)): offsets
            for topic in map(parse, urls)
            for number, offsets in offsets_of(topic).items()
            if topic.partition in (None, number)
        }

    def read(self, start: int, end: int) -> Records:
        """Return the values of the messages at ``start .. end - 1``; ``b""`` for a message without
        one. Removed messages, and offsets without a message in a range with an end, raise
        DataError."""
        if not 0 <= start <= end <= self.count:
            raise DataError(self.name, f"asked for records {start} to {end} of {self.count}")
        if start == end:
            return []
        with self._lock:
            try:
                records = self._read(self._first + start, self._first + end)
            except KafkaException as error:
                self._position = -1
                raise DataError(self.name, error.args[0].str()) from None
            except BaseException:
                self._position = -1
                raise
        if not self._endless and len(records) != end - start:
            raise DataError(
                self.name,
                f"{len(records)} messages at the {end - start} offsets from {start}: there are "
                "gaps (transactions, compaction), which only --epochs stream allows",
            )
        return records

    def _read(self, start: int, end: int) -> list[bytes]:
        self._go_to(start)
        records: list[bytes] = []
        until = time.monotonic() + READ_S
        while self._position < end:
            found = self._consumer.consume(min(end - self._position, _MESSAGES), _POLL_S)
            for message in found:
                error, offset = message.error(), message.offset()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    self._heed(error, start, end)
                elif offset >= end:  # the last offsets were a gap
                    self._position = -1
                    return records
                elif error is None:
                    records.append(message.value() or b"")
                    self._position = offset + 1
            if found:
                until = time.monotonic() + READ_S
            elif time.monotonic() > until:
                raise DataError(self.name, f"no message for {READ_S:g} s at {self._position}")
        self._rest()
        return records

    def _rest(self) -> None:
        """Unassign the partition at its end, since the consumer would keep fetching otherwise."""
        here = self._place(self._position)
        if self._position >= self._consumer.get_watermark_offsets(here, cached=True)[1]:
            self._consumer.unassign()
            self._position = -1

    def _go_to(self, offset: int) -> None:
        if self._process != os.getpid():  # a client does not survive a fork
            self._consumer = Consumer({**_CONSUMER, **properties(self._name.servers)}, logger=log)
            self._process, self._position = os.getpid(), -1
        if self._position != offset:
            self._consumer.assign([self._place(offset)])
            self._position = offset

    def _place(self, offset: int) -> TopicPartition:
        return TopicPartition(self._name.topic, self._name.partition or 0, offset)

    def _heed(self, error: KafkaError, start: int, end: int) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            low = offsets_of(self._name)[int(self._name.partition or 0)][0]
            if not self._skip_damaged:
                raise DataError(
                    self.name,
                    f"the offsets {start} to {min(low, end) - 1} were removed before they were "
                    f"read: the first one left is {low}; keep messages longer "
                    "(retention.ms), or leave these out: --skip-damaged",
                )
            log.warning("%s: left out: offsets %d to %d", self.name, start, min(low, end) - 1)
            self._position = -1
            self._go_to(min(max(low, start), end))
        elif error.fatal() or error.code() in _HOPELESS:
            raise KafkaException(error)


_HOPELESS = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._BAD_MSG,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)

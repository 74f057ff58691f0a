"""The name of a Kafka topic, partition or range of offsets:
``kafka://host:9092,host2:9092/topic``, ``.../topic/3``, ``.../topic/3#first=0&end=40``.

The user writes a topic, and a job adds the rest. TLS, users and passwords are configured in a file
of librdkafka's properties, whose path is in ``TORCH_EDL_KAFKA_CONFIG``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from torch_edl.errors import UsageError

ENV_CONFIG = "TORCH_EDL_KAFKA_CONFIG"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_EXAMPLE = "write for example kafka://host:9092/topic"


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

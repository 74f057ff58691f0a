"""The program of a broker: librdkafka's own mock cluster, which speaks the protocol of Kafka.

``kafka_broker.py TOPIC:PARTITIONS ...`` prints the address and serves until its input ends. Each
partition keeps its last 5 MB or 100,000 messages in memory.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import confluent_kafka


def main() -> None:
    libraries = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(libraries.glob("librdkafka*"))))
    for function in ("rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, function).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    error = ctypes.create_string_buffer(512)
    client = ctypes.c_void_p(library.rd_kafka_new(0, None, error, len(error)))
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    if not client or not cluster:
        sys.exit(f"no mock cluster: {error.value.decode()}")
    for word in sys.argv[1:]:
        topic, _, partitions = word.partition(":")
        if library.rd_kafka_mock_topic_create(cluster, topic.encode(), int(partitions), 1):
            sys.exit(f"{topic}: cannot be made")
    print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

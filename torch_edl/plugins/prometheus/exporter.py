"""``--metrics-port``: serves the metrics of a job over HTTP, in the process of the master."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import start_http_server
from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from torch_edl.errors import UsageError
from torch_edl.plugins.prometheus.families import families
from torch_edl.wire import master_pb2 as pb

Status = Callable[[], pb.GetStatusResponse]


class _Job(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return families(self._status())

    def describe(self) -> Iterator[Metric]:
        return iter(())  # else the registry would collect before the job begins


def serve(host: str, port: int, status: Status) -> Callable[[], None]:
    """Serve ``/metrics`` at the address, and return a function that ends it.

    Args:
        status: returns the current status; it is called once per scrape, in a thread.

    Raises:
        UsageError: the address is not available.
    """
    try:
        server, thread = start_http_server(port, host, registry(status))
    except OSError as error:
        text = f"--metrics-port: {host}:{port} is not available: {error.strerror or error}"
        raise UsageError(f"{text}; choose another port") from None

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close


def registry(status: Status) -> CollectorRegistry:
    """Return the registry with the metrics of the job, and those of this process."""
    made = CollectorRegistry()
    made.register(_Job(status))
    ProcessCollector(registry=made)
    return made

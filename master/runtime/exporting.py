"""Serves the numbers of a job to a monitoring system, which a plugin knows."""

from __future__ import annotations

from collections.abc import Callable

from master.runtime.service import Service
from torch_edl.config import JobConfig, extensions
from torch_edl.config.job import LOCAL
from torch_edl.interfaces import PROMETHEUS, Exporter
from torch_edl.wire import master_pb2 as pb

_NO_EVENTS = 1 << 53
_LOOPBACK, _ALL = "127.0.0.1", "0.0.0.0"


def export(service: Service, config: JobConfig) -> Callable[[], None]:
    """Serve the status of a job at the address of ``--metrics-port``, and return a function that
    ends it. Without a host, that is loopback; in a pod, all interfaces of the pod.

    Raises:
        UsageError: the plugin is not installed, or the address is not available.
    """
    exporter: Exporter = extensions.load(extensions.EXPORTERS, PROMETHEUS, "--metrics-port")
    host, _, port = config.metrics_port.rpartition(":")
    default = _LOOPBACK if config.platform == LOCAL else _ALL

    def status() -> pb.GetStatusResponse:
        with service.changed:
            return service.status(_NO_EVENTS)

    return exporter(host.strip("[]") or default, int(port), status)

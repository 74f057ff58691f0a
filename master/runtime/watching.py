"""Shows the status of a job to plugins: to watches, which judge its processes, and to an exporter,
which serves its numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from master.runtime.service import Service
from master.state.calls.verdicts import judge
from torch_edl.config import JobConfig, extensions
from torch_edl.config.job import LOCAL
from torch_edl.interfaces import PROMETHEUS, Exporter, Verdict, Watch
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.event_messages import NO_EVENTS

log = logging.getLogger(__name__)

_LOOPBACK, _ALL = "127.0.0.1", "0.0.0.0"


class Watches:
    """All installed watches of a job."""

    def __init__(self, service: Service, clock: Callable[[], float]) -> None:
        self._service, self._clock = service, clock
        self._watches: dict[str, Watch] = {
            name: extensions.load(extensions.WATCHES, name, name)(service.job.config)
            for name in sorted(extensions.installed(extensions.WATCHES))
        }

    def look(self, status: pb.GetStatusResponse) -> None:
        """Let all watches judge a status."""
        if self._service.job.lifecycle.ending:
            return
        now = self._clock()
        verdicts: list[Verdict] = []
        for name, watch in list(self._watches.items()):
            try:
                verdicts += watch.look(status, now)
            except Exception:  # in code of another package, maybe: the job goes on
                log.exception("the watch %s failed and is off for the rest of the job", name)
                del self._watches[name]
        with self._service.changed:
            judge(self._service.job, verdicts, now)


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
            return service.status(pb.GetStatusRequest(events_after=NO_EVENTS))

    return exporter(host.strip("[]") or default, int(port), status)

"""``torch-edl logs`` of a job on a cluster: the output of its pods and the events of its master."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from torch_edl.errors import EdlError, UsageError
from torch_edl.interfaces.platform import LogQuery
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.client.pod_output import PodOutput, by_process
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, MissingError, NoAnswerError
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState
from torch_edl.plugins.kubernetes.cluster.watch import Change, PodSeen, PodWatch
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.wire import master_pb2 as pb

_EVENTS = "events"
_ROLES = ("master", "ps", "worker", "spare", "agent")
_LOOK_S = 1.0

_Line = tuple[str, str]


def read(job: cluster_job.ClusterJob, query: LogQuery, write: Callable[[str, str], None]) -> None:
    """Read the logs of a job; see :meth:`torch_edl.interfaces.platform.JobHandle.read_logs`."""
    logs = _Logs(job=job, query=query, write=write)
    if query.follow:
        logs.follow()
    else:
        logs.show()


@dataclass(kw_only=True)
class _Logs:
    job: cluster_job.ClusterJob
    query: LogQuery
    write: Callable[[str, str], None]
    _events_after: int = 0
    _changes: queue.SimpleQueue[list[Change]] = field(default_factory=queue.SimpleQueue)

    def show(self) -> None:
        pods = [pod for pod in self.job.pods() if self._is_asked(pod)]
        if not pods and self.query.role != _EVENTS:
            asked = self.query.role or "any process"
            asked += "" if self.query.id is None else f" {self.query.id}"
            raise UsageError(
                f"{self.job.name}: there is no pod of {asked}; a log goes with its pod, see "
                f"torch-edl status {self.job.name} {self.job.where}"
            )
        for pod in sorted(pods, key=lambda each: (_ROLES.index(each.role), each.id)):
            self._read(pod)
        # Events come last because they tell how the job ended, and a terminal shows the last lines.
        self._show_events()

    def follow(self) -> None:
        output = PodOutput(self.job.api)
        watch = PodWatch(
            self.job.api,
            self._selector(),
            changed=self._changes.put,
            failed=lambda error: None,  # the watch keeps trying
        )
        with closing(watch), closing(output):
            over = False
            while not over:
                # Read the output once more after the end was observed, for lines written in
                # between.
                over = self._is_over()
                while not self._changes.empty():
                    for change in self._changes.get():
                        if isinstance(change, PodSeen) and self._is_asked(change.pod):
                            output.saw(change.pod, tail=self.query.tail)
                self._show_events()
                for pod, line in output.rest(_LOOK_S) if over else output.new():
                    self._show(self._line(pod, line))
                time.sleep(0 if over else _LOOK_S)

    def _is_over(self) -> bool:
        try:
            return self.job.is_gone()
        except NoAnswerError:
            return False

    def _selector(self) -> str:
        """Return the label selector for the wanted pods; :meth:`_is_asked` filters the rest."""
        wanted, (role, id) = [names.selector(self.job.name)], (self.query.role, self.query.id)
        if role:
            wanted.append(f"{names.ROLE}={role}")
        # A pod of several workers is labelled with the number of its first worker.
        if id is not None and not (role in ("", "worker") and self._shares_pods()):
            wanted.append(f"{names.ID}={id}")
        return ",".join(wanted)

    def _shares_pods(self) -> bool:
        config = self.job.config()
        pods: KubernetesConfig = config.platform_config
        return pods.shares_pods(config)

    def _is_asked(self, pod: PodState) -> bool:
        role, id = self.query.role, self.query.id
        is_asked = id is None or pod.id == id or (pod.shared and pod.id < id)
        return pod.role in _ROLES and role in ("", pod.role) and is_asked

    def _line(self, pod: PodState, line: bytes) -> _Line | None:
        """Return the process and its line; None if another process of the pod wrote the line."""
        name, own = by_process(pod, line)
        if self.query.id is not None and name != f"{pod.role}-{self.query.id}":
            return None
        return name, own.decode("utf-8", "replace")

    def _read(self, pod: PodState) -> None:
        try:
            # For one worker of a shared pod, ``--tail`` counts the lines of that worker only.
            of_one = pod.shared and self.query.id is not None
            tail = None if of_one else self.query.tail
            lines = self.job.api.log(pod.name, container=names.CONTAINER, tail=tail)
            texts = filter(None, (self._line(pod, line) for line in lines))
            for line in deque(texts, self.query.tail) if of_one else texts:
                self._show(line)
        except MissingError:
            pass  # the pod was deleted in the meantime
        except ClusterError as error:
            if pod.running or pod.ended:
                self._show(self._line(pod, str(error).encode()))

    def _show_events(self) -> None:
        if self.query.role not in ("", _EVENTS):
            return
        try:
            status = self.job.ask(pb.GetStatusRequest(events_after=self._events_after))
        except EdlError:  # the master is gone; its log tells how it ended
            return
        events = [each for each in status.events if each.sequence > self._events_after]
        if self.query.tail is not None and not self._events_after:
            events = events[len(events) - min(self.query.tail, len(events)) :]
        for event in status.events:
            self._events_after = max(self._events_after, event.sequence)
        for event in events:
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
            mark = "" if event.level == "info" else f"{event.level}: "
            self.write(_EVENTS, f"{clock} {mark}{event.text}")

    def _show(self, line: _Line | None) -> None:
        if line is not None:
            self.write(*line)

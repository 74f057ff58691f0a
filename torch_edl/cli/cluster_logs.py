"""``torch-edl logs`` of a job on a cluster: the output of its pods and the events of its master."""

from __future__ import annotations

import argparse
import queue
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from torch_edl.errors import EdlError, UsageError
from torch_edl.kubernetes import names
from torch_edl.kubernetes.api import Api
from torch_edl.kubernetes.failures import ClusterError, MissingError, NoAnswerError
from torch_edl.kubernetes.pod_state import PodState
from torch_edl.kubernetes.watch import Change, PodSeen, PodWatch
from torch_edl.launch.jobs import cluster_job
from torch_edl.launch.jobs.pod_output import PodOutput, by_process
from torch_edl.wire import master_pb2 as pb

_EVENTS = "events"
_ROLES = ("master", "ps", "worker", "spare", "agent")
_LOOK_S = 1.0


def main(args: argparse.Namespace, prefix: Callable[[str], str]) -> int:
    """Print the logs of a job; with ``--follow`` also new lines until the job is over.

    Args:
        prefix: returns the prefix of the lines of a process, given the name of the process.

    Raises:
        UsageError: no such job or log.
        ClusterError: the cluster does not answer, or rejects a request.
    """
    api = Api.of_kubeconfig(context=args.context, namespace=args.namespace)
    logs = _Logs(job=cluster_job.find(api, args.job), args=args, prefix=prefix)
    if args.follow:
        logs.follow()
    else:
        logs.show()
    return 0


@dataclass(kw_only=True)
class _Logs:
    job: cluster_job.ClusterJob
    args: argparse.Namespace
    prefix: Callable[[str], str]
    _events_after: int = 0
    _changes: queue.SimpleQueue[list[Change]] = field(default_factory=queue.SimpleQueue)

    def show(self) -> None:
        pods = [pod for pod in self.job.pods() if self._is_asked(pod)]
        if not pods and self.args.role != _EVENTS:
            asked = self.args.role or "any process"
            asked += "" if self.args.id is None else f" {self.args.id}"
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
                            output.saw(change.pod, tail=self.args.tail)
                self._show_events()
                for pod, line in output.rest(_LOOK_S) if over else output.new():
                    self._write(self._line(pod, line))
                time.sleep(0 if over else _LOOK_S)

    def _is_over(self) -> bool:
        try:
            return self.job.is_gone()
        except NoAnswerError:
            return False

    def _selector(self) -> str:
        """Return the label selector for the wanted pods; :meth:`_is_asked` filters the rest."""
        wanted, (role, id) = [names.selector(self.job.name)], (self.args.role, self.args.id)
        if role:
            wanted.append(f"{names.ROLE}={role}")
        # A pod of several workers is labelled with the number of its first worker.
        if id is not None and not (role in ("", "worker") and self.job.config().shares_pods):
            wanted.append(f"{names.ID}={id}")
        return ",".join(wanted)

    def _is_asked(self, pod: PodState) -> bool:
        role, id = self.args.role, self.args.id
        is_asked = id is None or pod.id == id or (pod.shared and pod.id < id)
        return pod.role in _ROLES and role in ("", pod.role) and is_asked

    def _line(self, pod: PodState, line: bytes) -> str:
        """Return the line as it is shown; empty if another process of the pod wrote the line."""
        name, own = by_process(pod, line)
        if self.args.id is None:
            return f"{self.prefix(name)}{own.decode('utf-8', 'replace')}\n"
        if name != f"{pod.role}-{self.args.id}":
            return ""
        return f"{own.decode('utf-8', 'replace')}\n"

    def _read(self, pod: PodState) -> None:
        try:
            # For one worker of a shared pod, ``--tail`` counts the lines of that worker only.
            of_one = pod.shared and self.args.id is not None
            tail = None if of_one else self.args.tail
            lines = self.job.api.log(pod.name, container=names.CONTAINER, tail=tail)
            texts = filter(None, (self._line(pod, line) for line in lines))
            for text in deque(texts, self.args.tail) if of_one else texts:
                self._write(text)
        except MissingError:
            pass  # the pod was deleted in the meantime
        except ClusterError as error:
            if pod.running or pod.ended:
                self._write(self._line(pod, str(error).encode()))

    def _show_events(self) -> None:
        if self.args.role not in ("", _EVENTS):
            return
        try:
            status = self.job.ask(pb.GetStatusRequest(events_after=self._events_after))
        except EdlError:  # the master is gone; its log tells how it ended
            return
        prefix = self.prefix(_EVENTS) if self.args.role != _EVENTS else ""
        events = [each for each in status.events if each.sequence > self._events_after]
        if self.args.tail is not None and not self._events_after:
            events = events[len(events) - min(self.args.tail, len(events)) :]
        for event in status.events:
            self._events_after = max(self._events_after, event.sequence)
        for event in events:
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
            mark = "" if event.level == "info" else f"{event.level}: "
            self._write(f"{prefix}{clock} {mark}{event.text}\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

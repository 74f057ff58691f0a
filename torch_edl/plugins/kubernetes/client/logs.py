"""``torch-edl logs`` of a job on a cluster: the output of its pods and the events of its master."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from torch_edl.errors import EdlError, UsageError
from torch_edl.interfaces.platform import LogQuery
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, MissingError, NoAnswerError
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState
from torch_edl.plugins.kubernetes.cluster.watch import PodWatch
from torch_edl.wire import master_pb2 as pb

# Number of lines that may wait for the reader; then the log streams block.
_LINES = 10_000
_PUT_S = 0.5
_NAMED = re.compile(rb"((?:worker|ps)-\d+): (.*)", re.DOTALL)
_MASTER = "master"

_EVENTS = "events"
_LOOK_S = 1.0
# Seconds to wait for the first list of the pods of a job that is over.
_LISTED_S = 10.0


def by_process(pod: PodState, line: bytes) -> tuple[str, bytes]:
    """Return the name of the process that wrote a line of a pod's log, and its text. Lines of the
    node count as those of the process for which the pod was created."""
    found = _NAMED.fullmatch(line) if pod.role != _MASTER else None
    return (found[1].decode(), found[2]) if found else (f"{pod.role}-{pod.id}", line)


class PodOutput:
    """Reads the logs of pods, each in a thread, and passes the lines to one reader.

    Args:
        most: number of pods whose logs are read at once; None for no limit. The log of another pod
            is read when one of these pods has ended.
    """

    def __init__(self, api: Api, *, most: int | None = None) -> None:
        self._api = api
        self._places = threading.Semaphore(most) if most is not None else None
        self._lines: queue.Queue[tuple[PodState, bytes]] = queue.Queue(_LINES)
        self._closed = threading.Event()
        self._readers: dict[str, threading.Thread] = {}

    def saw(self, pod: PodState, *, tail: int | None = None) -> None:
        """Start to read a new or changed pod, once its container runs.

        Args:
            tail: number of existing lines to start with; None for all.
        """
        if (pod.running or pod.ended) and pod.uid not in self._readers:
            run = threading.Thread(target=self._read, args=(pod, tail), name="output", daemon=True)
            self._readers[pod.uid] = run
            run.start()

    def new(self) -> Iterator[tuple[PodState, bytes]]:
        """Yield the lines since the last call."""
        # No more than the queue has now: pods may write faster than a terminal shows lines.
        for _ in range(self._lines.qsize()):
            yield self._lines.get()

    def rest(self, timeout_s: float) -> Iterator[tuple[PodState, bytes]]:
        """Yield lines until all pods have ended or no line has arrived for ``timeout_s``."""
        while any(reader.is_alive() for reader in self._readers.values()):
            try:
                yield self._lines.get(timeout=timeout_s)
            except queue.Empty:
                break
        yield from self.new()

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()

    def _read(self, pod: PodState, tail: int | None) -> None:
        with self._places or contextlib.nullcontext():
            try:
                lines = self._api.log(pod.name, container=names.CONTAINER, follow=True, tail=tail)
                for line in lines:
                    self._put(pod, line)
                    if self._closed.is_set():
                        return
            except MissingError:
                pass  # the pod was deleted
            except ClusterError as error:
                self._put(pod, str(error).encode())

    def _put(self, pod: PodState, line: bytes) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._lines.put((pod, line), timeout=_PUT_S)
                return


_ROLES = (_MASTER, "ps", "worker")


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
    _has_shown: bool = False
    """True once a line of a process was shown."""

    def show(self) -> None:
        pods = [pod for pod in self.job.pods() if self._is_asked(pod)]
        for pod in sorted(pods, key=lambda each: (_ROLES.index(each.role), each.id)):
            self._read(pod)
        found = self._has_shown if self.query.id is not None else bool(pods)
        if not found and self.query.role != _EVENTS:
            asked = self.query.role or "any process"
            asked += "" if self.query.id is None else f" {self.query.id}"
            raise UsageError(
                f"{self.job.name}: there is no output of {asked}; a log goes with its pod, see "
                f"torch-edl status {self.job.name} {self.job.where}"
            )
        # Events come last because they tell how the job ended, and a terminal shows the last lines.
        self._show_events()

    def follow(self) -> None:
        output = PodOutput(self.job.api)
        watch = PodWatch(self.job.api, self._selector())
        with closing(watch), closing(output):
            over = False
            while not over:
                # Read the output once more after the end was observed, for lines written in
                # between.
                with contextlib.suppress(NoAnswerError):
                    over = self.job.is_gone()
                if over:
                    watch.listed.wait(_LISTED_S)
                for pod in filter(self._is_asked, watch.pods()):
                    output.saw(pod, tail=self.query.tail)
                self._show_events()
                for pod, line in output.rest(_LOOK_S) if over else output.new():
                    self._show(pod, line)
                time.sleep(0 if over else _LOOK_S)

    def _selector(self) -> str:
        """Return the label selector for the wanted pods; :meth:`_is_asked` filters the rest."""
        wanted = names.selector(self.job.name)
        roles = _pod_roles(self.query.role)
        return f"{wanted},{names.ROLE} in ({','.join(roles)})"

    def _is_asked(self, pod: PodState) -> bool:
        """Return whether the log of a pod may have lines of an asked process. Processes that start
        later in a pod have higher numbers than that of the first process, or another role."""
        role, id = self.query.role, self.query.id
        is_asked = id is None or pod.id <= id or pod.role != role
        return pod.role in _pod_roles(role) and is_asked

    def _read(self, pod: PodState) -> None:
        try:
            # ``--tail`` counts only the lines of asked processes.
            filtered = self.query.id is not None or self.query.role not in ("", pod.role)
            tail = self.query.tail
            lines = self.job.api.log(
                pod.name, container=names.CONTAINER, tail=None if filtered else tail
            )
            if filtered:
                lines = iter(deque((line for line in lines if self._wrote(pod, line)), tail))
            for line in lines:
                self._show(pod, line)
        except MissingError:
            pass  # the pod has just been deleted
        except ClusterError as error:
            if pod.running or pod.ended:
                self._show(pod, str(error).encode())

    def _show_events(self) -> None:
        if self.query.role not in ("", _EVENTS):
            return
        try:
            status = self.job.ask(
                pb.GetStatusRequest(events_after=self._events_after, shown_only=True)
            )
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

    def _wrote(self, pod: PodState, line: bytes) -> bool:
        """Return True if an asked process wrote a line of a pod's log."""
        role, _, id = by_process(pod, line)[0].rpartition("-")
        return self.query.role in ("", role) and self.query.id in (None, int(id))

    def _show(self, pod: PodState, line: bytes) -> None:
        if self._wrote(pod, line):
            self._has_shown = True
            name, own = by_process(pod, line)
            self.write(name, own.decode("utf-8", "replace"))


def _pod_roles(role: str) -> tuple[str, ...]:
    """Return the roles of the pods whose logs may have lines of a role; empty: any role. A server
    may run in the pod of a worker."""
    if role == "ps":
        return ("ps", "worker")
    return (role,) if role else _ROLES

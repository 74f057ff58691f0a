"""Follows all pods of a job with one list and one watch, without polling.

:class:`Mirror` holds the states of the pods, and :class:`ListPause` decides whether to list or to
watch, and when. Both are pure. :class:`PodWatch` owns the thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.event_stream import EventStream, WatchEvent
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, ExpiredError
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState, read_pod
from torch_edl.plugins.kubernetes.cluster.requests import backoff_s

# The server ends a watch after _WATCH_S, as with client-go, and sends a bookmark each minute. The
# probes of the socket detect a dead connection earlier, see api.py. The limit of silence remains
# for a proxy that answers the probes, and for a server that hangs.
_WATCH_S = 300
_SILENCE_S = 90.0
_FIRST_BACKOFF_S = 0.5
# client-go waits up to 30 s, for the hundreds of watches of each node. A job has one watch: with 10
# s, each job makes a call every 5 to 10 s while the server is away, and learns of its pods that
# soon after its return.
_LONGEST_BACKOFF_S = 10.0
# Seconds after which a watch counts as working: the next failure is a new one.
_GOOD_S = 10.0
# Consecutive failures of a watch after which the pods are listed again.
_CONTINUED = 3


@dataclass(frozen=True)
class PodSeen:
    """A pod is new or has changed."""

    pod: PodState


@dataclass(frozen=True)
class PodGone:
    """A pod was deleted."""

    pod: PodState
    """The last known state of the pod."""


@dataclass(frozen=True)
class PodsListed:
    """The pods were listed; sent after the changes that the list revealed."""

    names: frozenset[str]
    began: float
    """Monotonic time at which the list was requested."""


Change = PodSeen | PodGone | PodsListed


class Mirror:
    """The pods of a job in their last known state.

    An event that is received twice changes nothing.
    """

    def __init__(self) -> None:
        self.version = ""
        """Version of the resource from which a watch continues; empty before the first list."""
        self._pods: dict[str, PodState] = {}

    def __iter__(self) -> Iterator[PodState]:
        return iter(self._pods.values())

    def listed(self, pods: Iterable[PodState], version: str) -> list[Change]:
        """Replace the pods by a complete list, and return the changes."""
        before, self._pods = self._pods, {}
        changes: list[Change] = []
        for pod in pods:
            changes += self._replaced(before.pop(pod.name, None), pod)
            self._pods[pod.name] = pod
        self.version = version
        return [*map(PodGone, before.values()), *changes]

    def apply(self, event: WatchEvent) -> list[Change]:
        """Apply an event other than ``ERROR``, and return the changes."""
        metadata = event.object.get("metadata") or {}
        self.version = str(metadata.get("resourceVersion") or self.version)
        if event.type == "BOOKMARK":
            return []
        pod = read_pod(event.object)
        before = self._pods.get(pod.name)
        if event.type == "DELETED":
            self._pods.pop(pod.name, None)
            # The last event of a pod may be the only one that shows how the pod ended.
            return [PodGone(pod)] if before is not None else []
        self._pods[pod.name] = pod
        return self._replaced(before, pod)

    @staticmethod
    def _replaced(before: PodState | None, pod: PodState) -> list[Change]:
        if before == pod:
            return []
        if before is not None and before.uid != pod.uid:
            return [PodGone(before), PodSeen(pod)]
        return [PodSeen(pod)]


class ListPause:
    """Decides whether the pods are listed or watched next, and after which pause. Pure.

    Args:
        jitter: returns random numbers from 0 to 1.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self.lists = True
        """True if the next call is a list; False if it is a watch from the known version."""
        self._jitter = jitter
        self._failures = 0
        self._began = 0.0

    def begins(self, now: float) -> None:
        """Record the start of a call."""
        self._began = now

    def listed(self) -> None:
        """Record that the pods were listed: a watch is next."""
        self.lists = False

    def ended(self, now: float) -> float:
        """Record that the server ended a watch, and return the seconds to wait."""
        if now - self._began >= _GOOD_S:
            self._failures = 0
            return 0.0
        return self._back_off()

    def failed(self, error: ClusterError, now: float) -> float:
        """Record that a list or a watch failed, and return the seconds to wait."""
        if now - self._began >= _GOOD_S:
            self._failures = 0
        wait_s = self._back_off()
        if isinstance(error, ExpiredError):
            first, self.lists = not self.lists, True
            return 0.0 if first and self._failures == 1 else wait_s
        # A silent watch may have missed events; so may a watch that the server repeatedly rejects.
        silent = error.status == 0 and now - self._began >= _SILENCE_S
        if silent or self._failures >= _CONTINUED:
            self.lists = True
        return max(wait_s, error.retry_after_s)

    def _back_off(self) -> float:
        self._failures += 1
        # Jitter, since all masters of a cluster lose their watch at once when its server restarts.
        return backoff_s(
            self._failures,
            first_s=_FIRST_BACKOFF_S,
            longest_s=_LONGEST_BACKOFF_S,
            jitter=self._jitter(),
        )


class PodWatch:
    """A thread that follows the pods of a job.

    Args:
        selector: label selector of the pods.
        news: called in the thread with each change, in order, and with the error of a list or a
            watch that failed; the thread keeps trying.
    """

    def __init__(
        self,
        api: Api,
        selector: str,
        *,
        news: Callable[[Change | ClusterError], None] = lambda _: None,
    ) -> None:
        self.listed = threading.Event()
        """Set once the pods were listed."""
        self.error: ClusterError | None = None
        """Error of the last call; None if it succeeded."""
        self._api = api
        self._selector = selector
        self._news = news
        self._mirror = Mirror()
        self._pace = ListPause()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: EventStream | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def pods(self) -> list[PodState]:
        """Return the pods in their last known state."""
        with self._lock:
            return list(self._mirror)

    def close(self) -> None:
        """End the thread, and wait up to 5 seconds for it."""
        with self._lock:
            self._closed.set()
            stream = self._stream
        if stream is not None:
            stream.interrupt()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._pace.begins(time.monotonic())
            try:
                if self._pace.lists:
                    self._list()
                self._pace.begins(time.monotonic())
                self._follow()
                wait_s = self._pace.ended(time.monotonic())
            except ClusterError as error:
                if self._closed.is_set():
                    return
                wait_s = self._pace.failed(error, time.monotonic())
                if not isinstance(error, ExpiredError):
                    self.error = error
                    self._news(error)
            self._closed.wait(wait_s)

    def _list(self) -> None:
        began = time.monotonic()
        pods, version = self._api.list("Pod", self._selector, read=read_pod)
        with self._lock:
            changes = self._mirror.listed(pods, version)
        self._pace.listed()
        self._tell([*changes, PodsListed(frozenset(pod.name for pod in pods), began)])
        self.listed.set()

    def _follow(self) -> None:
        stream = self._api.watch(
            "Pod",
            self._selector,
            self._mirror.version,
            timeout_s=_WATCH_S,
            silence_s=_SILENCE_S,
        )
        with self._lock:
            self._stream = stream
            if self._closed.is_set():
                stream.interrupt()
        for event in stream:
            with self._lock:
                changes = self._mirror.apply(event)
            self._tell(changes)

    def _tell(self, changes: Iterable[Change]) -> None:
        self.error = None
        for change in changes:
            self._news(change)

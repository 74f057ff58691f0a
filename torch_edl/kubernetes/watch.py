"""All pods of a job, followed by one watch: a list, then each change from the version of the list
on. No polling.

:class:`Mirror` knows the pods, and :class:`ListPause` decides what is asked for next, and when:
both are pure. :class:`PodWatch` has the thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch_edl.kubernetes.failures import ClusterError, ExpiredError, ForbiddenError
from torch_edl.kubernetes.pod_state import PodState, read_pod

log = logging.getLogger(__name__)

# The server ends a watch after a while, as client-go asks it to; a bookmark comes each minute. A
# connection that is dead is found before, by the probes of its socket, see api.py. Silence alone is
# what remains where a proxy answers those, or the server itself hangs.
_WATCH_S = 300
_SILENCE_S = 90.0
_FIRST_BACKOFF_S = 0.5
# client-go has 30 s, for the hundreds of watches of each node. A job has one: that is a call of
# each job in 5 to 10 s while the server is away, and word of its pods as soon after.
_LONGEST_BACKOFF_S = 10.0
# A watch that lasted that long was a good one: what fails next is a new failure.
_GOOD_S = 10.0
# How long a watch that fails is continued before the pods are listed again.
_CONTINUED = 3
# An absence that lasts longer is worth a line in the log.
_AWAY_S = 10.0


@dataclass(frozen=True)
class WatchEvent:
    """A line of a watch."""

    type: str
    """``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK`` or ``ERROR``."""
    object: dict[str, Any]


@dataclass(frozen=True)
class PodSeen:
    """A pod is new, or has changed."""

    pod: PodState


@dataclass(frozen=True)
class PodGone:
    """A pod is not there any more."""

    pod: PodState
    """Its last state that is known."""


@dataclass(frozen=True)
class PodsListed:
    """All pods that there are; behind the changes that the list has brought."""

    names: frozenset[str]
    began: float
    """When the list was asked for, on the monotonic clock."""


Change = PodSeen | PodGone | PodsListed


class Mirror:
    """The pods of a job as the server last told of them. An event that comes again changes
    nothing."""

    def __init__(self) -> None:
        self.version = ""
        """From which a watch continues."""
        self._pods: dict[str, PodState] = {}

    def get(self, name: str) -> PodState | None:
        """The pod of a name, if it is there."""
        return self._pods.get(name)

    def __iter__(self) -> Iterator[PodState]:
        return iter(self._pods.values())

    def listed(self, pods: Iterable[PodState], version: str) -> list[Change]:
        """All pods that there are; what is known otherwise is gone."""
        before, self._pods = self._pods, {}
        changes: list[Change] = []
        for pod in pods:
            changes += self._replaced(before.pop(pod.name, None), pod)
            self._pods[pod.name] = pod
        self.version = version
        return [*map(PodGone, before.values()), *changes]

    def apply(self, event: WatchEvent) -> list[Change]:
        """A line of a watch, but for ``ERROR``."""
        metadata = event.object.get("metadata") or {}
        self.version = str(metadata.get("resourceVersion") or self.version)
        if event.type == "BOOKMARK":
            return []
        pod = read_pod(event.object)
        before = self._pods.pop(pod.name, None)
        if event.type == "DELETED":
            # The last event of a pod may be the only one that says how it ended.
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
    """Whether the pods are to be listed, or watched on; and how long to wait before that.

    Args:
        jitter: gives numbers from 0 to 1.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self.lists = True
        """The next call is a list, rather than a watch from the version that is known."""
        self._jitter = jitter
        self._failures = 0
        self._began = 0.0

    def begins(self, now: float) -> None:
        """A call begins."""
        self._began = now

    def listed(self) -> None:
        """The pods were listed: a watch is next."""
        self.lists = False

    def ended(self, now: float) -> float:
        """The server ended a watch, as it does after a while; returns how long to wait."""
        if now - self._began >= _GOOD_S:
            self._failures = 0
            return 0.0
        return self._back_off()

    def failed(self, error: ClusterError, now: float) -> float:
        """A list or a watch failed; returns how long to wait."""
        if now - self._began >= _GOOD_S:
            self._failures = 0
        wait_s = self._back_off()
        if isinstance(error, ExpiredError):
            first, self.lists = not self.lists, True
            return 0.0 if first and self._failures == 1 else wait_s
        # A watch that was silent may have missed what happened since; so may one that the server
        # does not continue.
        silent = error.status == 0 and now - self._began >= _SILENCE_S
        if silent or self._failures >= _CONTINUED:
            self.lists = True
        return max(wait_s, error.retry_after_s)

    def _back_off(self) -> float:
        wait_s = min(_FIRST_BACKOFF_S * 2.0**self._failures, _LONGEST_BACKOFF_S)
        self._failures = min(self._failures + 1, 16)
        # All masters of a cluster lose their watch at once when its server is restarted.
        return wait_s * (0.5 + 0.5 * self._jitter())


class WatchStream(Protocol):
    """A watch of the API."""

    def __iter__(self) -> Iterator[WatchEvent]:
        """The events as they arrive."""
        ...

    def interrupt(self) -> None:
        """Ends the iteration; may be called by another thread."""
        ...


class PodSource(Protocol):
    """What of :class:`torch_edl.kubernetes.api.Api` a watch needs."""

    def list(
        self, kind: str, selector: str, *, read: Callable[[dict[str, Any]], PodState]
    ) -> tuple[list[PodState], str]: ...

    def watch(
        self, kind: str, selector: str, version: str, *, timeout_s: int, silence_s: float
    ) -> WatchStream: ...


class PodWatch:
    """A thread that follows the pods of a job.

    Args:
        selector: of the pods.
        changed: is called in that thread with what has changed, in order.
        failed: is called in that thread with why the cluster cannot be followed.
    """

    def __init__(
        self,
        api: PodSource,
        selector: str,
        *,
        changed: Callable[[list[Change]], None],
        failed: Callable[[ClusterError], None],
    ) -> None:
        self._api = api
        self._selector = selector
        self._changed = changed
        self._failed = failed
        self._mirror = Mirror()
        self._pace = ListPause()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: WatchStream | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and waits for it unless it waits for an answer."""
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
                    self._failed(error)
            self._closed.wait(wait_s)

    def _list(self) -> None:
        began = time.monotonic()
        pods, version = self._api.list("Pod", self._selector, read=read_pod)
        changes = self._mirror.listed(pods, version)
        self._pace.listed()
        listed = PodsListed(frozenset(pod.name for pod in self._mirror), began)
        self._changed([*changes, listed])

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
            if changes := self._mirror.apply(event):
                self._changed(changes)


class Follower:
    """Follows the pods of a job, and logs when that is not possible.

    Args:
        selector: of the pods.
        news: is called in another thread with each change, in order, and with the error if the
            server has never listed the pods and this process may not list them.
        forbidden_s: seconds for which the server may reject the first list.
    """

    def __init__(
        self,
        api: PodSource,
        selector: str,
        *,
        news: Callable[[Change | ForbiddenError], None],
        forbidden_s: float,
    ) -> None:
        self._news = news
        self._forbidden_s = forbidden_s
        self._has_listed = False
        self._away_since: float | None = None
        self._has_warned = False
        self._watch = PodWatch(api, selector, changed=self._changed, failed=self._failed)

    def close(self) -> None:
        """As :meth:`PodWatch.close`."""
        self._watch.close()

    def _changed(self, changes: Iterable[Change]) -> None:
        if self._has_warned:
            log.warning("the pods are followed again")
        self._away_since, self._has_warned, self._has_listed = None, False, True
        for change in changes:
            self._news(change)

    def _failed(self, error: ClusterError) -> None:
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        away_s = now - self._away_since
        if away_s >= _AWAY_S and not self._has_warned:
            log.warning("the pods cannot be followed: %s; the job goes on, trying again", error)
            self._has_warned = True
        too_long = away_s >= self._forbidden_s and not self._has_listed
        if too_long and isinstance(error, ForbiddenError):
            self._news(error)

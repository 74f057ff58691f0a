"""The output of the pods of a job, line by line while they run."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from collections.abc import Iterator

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, MissingError
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState

# Number of lines that may wait for the reader; then the log streams block.
_LINES = 10_000
_PUT_S = 0.5
_NAMED = re.compile(rb"(worker-\d+): (.*)", re.DOTALL)


def by_process(pod: PodState, line: bytes) -> tuple[str, bytes]:
    """Return the name of the process that wrote a line of a pod's log, and its text."""
    found = _NAMED.fullmatch(line) if pod.shared else None
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

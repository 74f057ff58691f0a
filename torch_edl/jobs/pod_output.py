"""The output of the pods of a job while they write it, a line at a time."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from collections.abc import Iterator

from torch_edl.kubernetes import names
from torch_edl.kubernetes.api import Api
from torch_edl.kubernetes.causes import PodState
from torch_edl.kubernetes.failures import ClusterError, MissingError

# Lines that nobody has taken yet; then the streams wait.
_LINES = 10_000
_PUT_S = 0.5
_NAMED = re.compile(rb"(worker-\d+): (.*)", re.DOTALL)


def by_process(pod: PodState, line: bytes) -> tuple[str, bytes]:
    """The name of the process that wrote a line of a pod's log, and what it wrote."""
    found = _NAMED.fullmatch(line) if pod.shared else None
    return (found[1].decode(), found[2]) if found else (f"{pod.role}-{pod.id}", line)


class PodOutput:
    """Reads the logs of pods, each in a thread, and hands their lines to one reader.

    Args:
        most: pods whose logs are read at once; None: any number. Others are read when one of these
            has ended, if they still run.
    """

    def __init__(self, api: Api, *, most: int | None = None) -> None:
        self._api = api
        self._places = threading.Semaphore(most) if most is not None else None
        self._lines: queue.Queue[tuple[PodState, bytes]] = queue.Queue(_LINES)
        self._closed = threading.Event()
        self._readers: dict[str, threading.Thread] = {}

    def saw(self, pod: PodState, *, tail: int | None = None) -> None:
        """A pod is new, or has changed: it is read as soon as its container runs.

        Args:
            tail: begin with so many of the lines that it has written; None: with all.
        """
        if (pod.running or pod.ended) and pod.uid not in self._readers:
            run = threading.Thread(target=self._read, args=(pod, tail), name="output", daemon=True)
            self._readers[pod.uid] = run
            run.start()

    def new(self) -> Iterator[tuple[PodState, bytes]]:
        """The lines since the last call."""
        # No more than there are now: pods may write faster than a terminal shows it.
        for _ in range(self._lines.qsize()):
            yield self._lines.get()

    def rest(self, timeout_s: float) -> Iterator[tuple[PodState, bytes]]:
        """What comes until all pods that are read have ended, or no line has come for so long."""
        while any(reader.is_alive() for reader in self._readers.values()):
            try:
                yield self._lines.get(timeout=timeout_s)
            except queue.Empty:
                break
        yield from self.new()

    def close(self) -> None:
        """Reads nothing more."""
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
                pass  # its pod has just gone
            except ClusterError as error:
                self._put(pod, str(error).encode())

    def _put(self, pod: PodState, line: bytes) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._lines.put((pod, line), timeout=_PUT_S)
                return

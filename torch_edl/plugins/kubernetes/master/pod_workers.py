"""The main process of a pod that several workers share.

``python -m torch_edl.plugins.kubernetes.master.pod_workers`` starts and stops the workers that the
master names, forwards SIGTERM to all of them, and reports their exits. It does not import torch and
makes no decisions: a pod whose workers have all ended waits until the master deletes it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import grpc

from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN, master_away_s
from torch_edl.processes.launcher import ProcessSpec
from torch_edl.processes.local import LocalLauncher
from torch_edl.processes.process_group import reap_orphans
from torch_edl.processes.signals import StopSignals
from torch_edl.processes.this_process import setup_logging
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import REFUSED, Stub

log = logging.getLogger(__name__)

_WORKER = "worker"
_REPORT_S = 2.0
_AGAIN_S = 0.5
_CALL_S = 5.0
# Seconds after which the exit of a worker is noticed if SIGCHLD is missed.
_POLL_S = 0.5
# Seconds between two searches for ended processes that killed workers had forked.
_REAP_S = 2.0
_MOST_CHARS = 300
# No limit in practice: a worker exits when its own grace period is over, and the kubelet ends the
# pod.
_GRACE_S = 3600.0


class PodWorkers:
    """The workers of one pod. Must be used from the main thread.

    Args:
        pod: number of the pod.
        incarnation: incarnation of the job's state in which the pod was made.
        module: module that a worker runs.
        stub: client of the master.
        away_s: seconds without an answer of a master after which this process exits.
    """

    def __init__(
        self, pod: int, incarnation: str, module: str, stub: Stub, *, away_s: float
    ) -> None:
        self._pod, self._incarnation, self._module = pod, incarnation, module
        self._stub, self._away_s = stub, away_s
        # Guards the last lines, which the threads of the workers write.
        self._lock = threading.Lock()
        self._last_lines: dict[int, bytes] = {}
        self._workers = LocalLauncher(lines=self._line)
        self._running: dict[int, int] = {}
        """Pids of running workers, by id."""
        self._codes: dict[int, int] = {}
        """Exit codes of workers that have ended, negative for signals; such workers are not started
        again."""
        self._untold: set[int] = set()
        self._call: Future[Any] | None = None
        self._due_at = self._reap_at = 0.0
        self._heard_at = time.monotonic()
        # A queue and not an event, since a signal handler may write to it.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._leaves = False
        self._signals = StopSignals((signal.SIGTERM,), wake=self._wake)

    def run(self) -> int:
        """Run workers until the master or SIGTERM ends the pod.

        Returns:
            The exit code: 0, 143 after SIGTERM, 1 if no master answered for ``away_s`` seconds.
        """
        self._signals.install()
        before = signal.signal(signal.SIGCHLD, lambda *_: self._wake())
        try:
            while not (self._signals.count or self._leaves):
                if time.monotonic() - self._heard_at > self._away_s:
                    log.error("no answer of a master for %g s: this pod ends", self._away_s)
                    return 1
                self._turn(time.monotonic())
                with contextlib.suppress(queue.Empty):
                    self._wakes.get(timeout=_POLL_S)
            self._workers.stop_all(grace_s=_GRACE_S if self._signals.count else 0.0)
            return self._signals.exit_code
        finally:
            self._workers.stop_all(grace_s=0.0)
            signal.signal(signal.SIGCHLD, before)
            self._signals.restore()

    def _turn(self, now: float) -> None:
        if os.getpid() == 1 and now >= self._reap_at:
            self._reap_at = now + _REAP_S
            reap_orphans(self._running.values())
        for exit in self._workers.poll():
            self._codes[exit.id] = -exit.signal if exit.signal is not None else exit.code or 0
            del self._running[exit.id]
            self._untold.add(exit.id)
            self._due_at = 0.0
        if self._call is not None and self._call.done():
            self._heed(self._call, now)
        if self._call is None and now >= self._due_at:
            self._due_at = now + _REPORT_S
            self._call = self._stub.start(self._report(), timeout_s=_CALL_S)
            self._call.add_done_callback(lambda _: self._wake())

    def _report(self) -> pb.PodReportRequest:
        request = pb.PodReportRequest(
            pod=self._pod, incarnation=self._incarnation, running=sorted(self._running)
        )
        with self._lock:
            for id in sorted(self._untold):
                text = self._last_lines.get(id, b"").decode("utf-8", "replace").strip()
                request.ended.add(id=id, code=self._codes[id], last_line=text[:_MOST_CHARS])
        return request

    def _heed(self, call: Future[Any], now: float) -> None:
        self._call = None
        try:
            answer = call.result()
        except grpc.RpcError as error:
            if error.code() in REFUSED:
                log.error("the master rejects this pod: %s", error.details())
                self._leaves = True
            self._due_at = now + _AGAIN_S
            return
        self._heard_at = now
        self._leaves = answer.leave
        for each in answer.stop:
            if each.id in self._running:
                self._workers.stop(_WORKER, each.id, grace_s=each.grace_s)
        wanted = {*answer.run, *(each.id for each in answer.stop)}
        # The master has received the exits of the others; a new master may ask for the rest again.
        self._untold = wanted & self._codes.keys()
        if self._untold:
            self._due_at = 0.0
        for id in answer.run:
            if id not in self._running and id not in self._codes and not self._leaves:
                self._start(id)
                self._due_at = 0.0

    def _start(self, id: int) -> None:
        spec = ProcessSpec(role=_WORKER, id=id, module=self._module, args=["--id", str(id)])
        try:
            self._running[id] = self._workers.start(spec)
        except OSError as error:
            log.error("worker-%d cannot be started: %s", id, error.strerror)
            self._codes[id] = 1
            self._untold.add(id)

    def _line(self, name: str, line: bytes) -> None:
        """Write a line of a worker to the log of the pod, after the name of the worker."""
        with self._lock:
            self._last_lines[int(name.rpartition("-")[2])] = line
            sys.stdout.buffer.write(name.encode() + b": " + line.rstrip(b"\n") + b"\n")
            sys.stdout.buffer.flush()

    def _wake(self) -> None:
        self._wakes.put(None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workers of a pod; see :meth:`PodWorkers.run` for the exit code."""
    parser = argparse.ArgumentParser(prog="torch_edl.plugins.kubernetes.master.pod_workers")
    parser.add_argument("--pod", type=int, required=True)
    parser.add_argument("--incarnation", required=True)
    parser.add_argument("--module", required=True)
    args = parser.parse_args(argv)
    setup_logging("pod", args.pod)
    stub = Stub(services.PODS, os.environ[ENV_MASTER], os.environ.get(ENV_TOKEN, ""))
    away_s = master_away_s()
    workers = PodWorkers(args.pod, args.incarnation, args.module, stub, away_s=away_s)
    try:
        return workers.run()
    finally:
        stub.close()


if __name__ == "__main__":
    sys.exit(main())

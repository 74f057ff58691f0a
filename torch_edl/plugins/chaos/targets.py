"""Signals for processes of a job on this machine that can reach no other process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch_edl.config.environment import ENV_TOKEN
from torch_edl.plugins.chaos.site import EXITED
from torch_edl.plugins.chaos.storm import Target
from torch_edl.wire import master_pb2 as pb


class Processes:
    """Finds and signals processes of one job.

    A process is held by a pidfd, which stays valid if the pid is reused. A process belongs to the
    job if its environment has the secret token of the job. This excludes processes on other
    machines and processes that received an old pid.

    Args:
        token: token of the job.
    """

    def __init__(self, token: str) -> None:
        self._mark = f"{ENV_TOKEN}={token}".encode()

    def living(self, listed: Iterable[pb.ProcessStatus]) -> list[Target]:
        """Return the processes of a status that run on this machine."""
        found = []
        for process in listed:
            target = Target(process.role, process.id, process.pid)
            if process.state != EXITED and process.pid > 0:
                with self._held(target) as fd:
                    found += [target] if fd is not None else []
        return found

    def send(self, target: Target, number: signal.Signals) -> bool:
        """Send a signal; return False if the process is gone."""
        with self._held(target) as fd:
            return fd is not None and _send(fd, number)

    @contextlib.contextmanager
    def _held(self, target: Target) -> Iterator[int | None]:
        try:
            fd = os.pidfd_open(target.pid)
        except OSError:  # the process is gone
            yield None
            return
        try:
            # Signal 0 confirms that the process still ran after its environment was read, so that
            # the pid was not reused in between.
            yield fd if self._is_ours(target) and _send(fd, 0) else None
        finally:
            os.close(fd)

    def _is_ours(self, target: Target) -> bool:
        try:
            environment = Path(f"/proc/{target.pid}/environ").read_bytes()
        except OSError:  # the process is gone, or belongs to another user
            return False
        return self._mark in environment.split(b"\0")


def _send(fd: int, number: int) -> bool:
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:  # ended
        return False
    return True

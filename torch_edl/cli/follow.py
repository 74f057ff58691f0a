"""What the followers of a job share on all platforms: the statuses of its master, its silence, and
the request to stop."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import grpc

from torch_edl.cli.progress import Display
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.jobs.folder import ENDED
from torch_edl.processes.signals import StopSignals
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

SILENT_S = 30.0
"""Seconds without an answer of the master after which the user is told."""


class MasterStatus:
    """The statuses of a job's master, which are shown as they arrive.

    Args:
        timeout_s: time limit of a call.
    """

    def __init__(self, display: Display, signals: StopSignals, timeout_s: float) -> None:
        self.stub: Stub | None = None
        """Connection to the master; None before the first."""
        self.newest: pb.GetStatusResponse | None = None
        """The newest status; None before the first answer."""
        self._display = display
        self._signals = signals
        self._timeout_s = timeout_s
        self._answered = time.monotonic()
        self._silence_told = False
        self._asked_to_stop: dict[bool, Future[Any]] = {}

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.newest is not None and self.newest.state in ENDED

    @property
    def silent_s(self) -> float:
        """Seconds since the last answer, or since the connection was made."""
        return time.monotonic() - self._answered

    def connect(self, stub: Stub | None) -> None:
        """Ask this master from now on; None: no master."""
        self.stub, self._answered = stub, time.monotonic()

    def ask(self) -> grpc.RpcError | None:
        """Ask the master and show its answer; return the error if there is none.

        An answer has a limited number of events, so that the end may need several calls.
        """
        assert self.stub is not None
        while True:
            request = pb.GetStatusRequest(events_after=self._display.events_after)
            try:
                self.newest = self.stub.call(request, timeout_s=self._timeout_s)
            except grpc.RpcError as error:
                return error
            self._answered, self._silence_told = time.monotonic(), False
            self._display.take(self.newest, signals=(self._signals.name,))
            if not self.is_over or self._display.events_after >= self.newest.last_event:
                return None

    def note_silence(self, why: str) -> None:
        """Show once that the master has not answered for long."""
        if self.silent_s > SILENT_S and not self._silence_told:
            self._silence_told = True
            self._display.note(
                f"the master has not answered for {self.silent_s:.0f} s ({why}); still waiting"
            )

    def stop(self, *, at_once: bool) -> None:
        """Ask the master to stop the job, unless a master has confirmed this request; a restart may
        lose it. The call is not awaited: the next status shows the result."""
        assert self.stub is not None
        asked = self._asked_to_stop.get(at_once)
        if asked is None or (asked.done() and asked.exception() is not None):
            request = pb.StopRequest(reason=self._signals.name, at_once=at_once)
            self._asked_to_stop[at_once] = self.stub.start(request, timeout_s=self._timeout_s)


def as_reported(seen: JobOutcome, status: pb.GetStatusResponse) -> JobOutcome:
    """Return the outcome that the last status of a job reports."""
    return replace(
        seen,
        state=status.state,
        error=status.error,
        traceback=status.traceback,
        usage_error=status.usage_error,
    )

"""Parallel calls to the API server, paced by the answers of the server.

A call that the server could not handle (429, 5xx, no answer) is repeated after the delay that the
server names, or after a delay that doubles. While the server asks for a pause (429), no call is
started. A call that the server rejects is repeated for as long as its submitter allows.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch_edl.plugins.kubernetes.cluster.failures import (
    SETTLING_S,
    ClusterError,
    ForbiddenError,
    NoAnswerError,
    QuotaError,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

# Parallel calls of one master: an API server handles about a hundred calls of all clients at once.
_PARALLEL = 16
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
_CLOSE_S = 5.0
# Other pods must end before the quota has room.
_QUOTA_BACKOFF_S = 5.0
# Errors that pass without a change by the user; such calls are repeated without end.
_WAITS = (QuotaError, NoAnswerError)
# Seconds for which a blocking call is repeated, and the pause between two attempts.
_PATIENCE_S, _PAUSE_S = 60.0, 1.0


def backoff_s(failures: int, *, first_s: float, longest_s: float, jitter: float) -> float:
    """Return the pause after a number of consecutive failures: each is twice the last one.

    Args:
        failures: 1 after the first failure.
        jitter: number from 0 to 1 that spreads the calls of many clients; 1 for the whole pause.
    """
    return min(first_s * 2.0 ** min(failures - 1, 16), longest_s) * (0.5 + 0.5 * jitter)


def settled(call: Callable[[], T], *, forbidden_s: float = SETTLING_S) -> T:
    """Return the answer to a call, which is repeated if the server rejects it or is silent.

    Without an answer, the call is repeated for at most a minute.

    Args:
        forbidden_s: seconds for which the server may reject the caller.

    Raises:
        ClusterError: the last error.
    """
    began, told = time.monotonic(), ""
    forbidden_since = math.inf
    while True:
        try:
            return call()
        except (NoAnswerError, ForbiddenError) as error:
            now = time.monotonic()
            if isinstance(error, ForbiddenError):
                forbidden_since = min(forbidden_since, now)
                if now - forbidden_since >= forbidden_s:
                    raise
            elif now - began >= _PATIENCE_S:
                raise
            if str(error) != told:
                told = str(error)
                log.warning("%s; trying again", error)
            time.sleep(max(_PAUSE_S, error.retry_after_s))


@dataclass
class _Call:
    about: str
    make: Callable[[], None]
    done: Callable[[ClusterError | None], None]
    delayed: Callable[[ClusterError], None]
    patience_s: Callable[[ClusterError], float]
    failures: int = 0
    rejected_at: float | None = None
    """Monotonic time of the first rejection by the server; None if the last answer was no
    rejection."""

    def give_up_at(self, error: ClusterError, now: float) -> float:
        """Return the monotonic time at which the call is no longer repeated after ``error``."""
        if isinstance(error, _WAITS):
            self.rejected_at = None
            return math.inf
        self.rejected_at = now if self.rejected_at is None else self.rejected_at
        return self.rejected_at + self.patience_s(error)


class Pacing:
    """Decides when a failed call is repeated, and when any call may be started. Pure.

    Args:
        jitter: returns random numbers from 0 to 1.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self.rest_until = 0.0
        """Monotonic time before which no call is started."""
        self._jitter = jitter

    def again_at(
        self, error: ClusterError, failures: int, now: float, *, give_up_at: float
    ) -> float | None:
        """Return the time at which a failed call is repeated; None from ``give_up_at`` on."""
        if now >= give_up_at:
            return None
        first_s = _QUOTA_BACKOFF_S if isinstance(error, QuotaError) else _FIRST_BACKOFF_S
        wait_s = backoff_s(
            failures, first_s=first_s, longest_s=_LONGEST_BACKOFF_S, jitter=self._jitter()
        )
        if error.status == 429:
            self.rest_until = max(self.rest_until, now + max(error.retry_after_s, 1.0))
        return now + max(wait_s, error.retry_after_s)


class Requests:
    """Threads that make and repeat calls. A call must have the same effect if it is made twice."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[tuple[float, int, _Call]] = []
        self._numbers = itertools.count()
        self._pacing = Pacing()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(
        self,
        make: Callable[[], None],
        *,
        about: str = "",
        done: Callable[[ClusterError | None], None],
        delayed: Callable[[ClusterError], None],
        patience_s: Callable[[ClusterError], float] = lambda error: 0.0,
    ) -> None:
        """Queue a call.

        Args:
            make: makes the call.
            about: key for :meth:`hurry`.
            done: called once in another thread, with None after success, or with the error if the
                call is not repeated.
            delayed: called in another thread when the call failed and will be repeated.
            patience_s: called in another thread when the server rejected the call; returns the
                seconds for which a call with that error is repeated.
        """
        with self._changed:
            self._push(0.0, _Call(about, make, done, delayed, patience_s))
            if self._idle < len(self._calls) and len(self._threads) < _PARALLEL:
                thread = threading.Thread(target=self._run, name="requests", daemon=True)
                self._threads.append(thread)
                thread.start()

    def hurry(self, about: str) -> None:
        """Repeat the waiting calls with the key ``about`` now."""
        with self._changed:
            for place, (_, number, call) in enumerate(self._calls):
                if call.about == about:
                    self._calls[place] = (0.0, number, call)
            heapq.heapify(self._calls)
            self._changed.notify()

    def close(self) -> None:
        """Drop the calls that were not started, and wait up to 5 seconds per thread for the
        others."""
        with self._changed:
            self._closed = True
            self._calls.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=_CLOSE_S)

    def _push(self, at: float, call: _Call) -> None:
        heapq.heappush(self._calls, (at, next(self._numbers), call))
        self._changed.notify()

    def _next(self) -> _Call | None:
        """Wait until a call is due and return it; None after :meth:`close`."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = max(self._calls[0][0], self._pacing.rest_until) if self._calls else None
                if due is not None and due <= now:
                    call = heapq.heappop(self._calls)[2]
                    # This thread makes the call, so another one must wait for the next call.
                    self._changed.notify()
                    return call
                self._idle += 1
                self._changed.wait(None if due is None else due - now)
                self._idle -= 1
            return None

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call.make()
            except ClusterError as error:
                call.failures += 1
                now = time.monotonic()
                with self._changed:
                    give_up_at = call.give_up_at(error, now)
                    at = self._pacing.again_at(error, call.failures, now, give_up_at=give_up_at)
                    if at is not None:
                        self._push(at, call)
                if at is None:
                    call.done(error)
                else:
                    call.delayed(error)
            else:
                call.done(None)

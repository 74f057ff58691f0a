"""Which of the processes that do the same work are slow. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

WITHIN_S = 30.0
"""Seconds over which rates are compared."""
# Seconds after which a process is suspected, and the counts of its machine are requested.
_SUSPECT_S = 5.0
SLOW = 0.5
"""Part of the median rate below which a process is slow."""
_RECOVERED = 0.7


class Work(NamedTuple):
    """What a process has done since it started."""

    amount: float
    """Records, or calls."""
    busy_s: float
    """Seconds in which the process worked on them."""


class Change(NamedTuple):
    """A process that is slow from now on, or that has recovered."""

    id: int
    share: float
    """Rate of the process as a part of the median."""
    is_slow: bool
    others: int
    """Number of the processes that were compared."""


class Slowness:
    """Compares the rates of processes over the last 30 seconds.

    A process is slow if its rate was below half of the median, and has recovered once it is above
    0.7 of the median.

    Args:
        least: amount of work of the median process below which rates say nothing.
        least_busy_s: seconds of work within the window below which a process cannot be slow.
    """

    def __init__(self, *, least: float, least_busy_s: float) -> None:
        self._least, self._least_busy_s = least, least_busy_s
        self._samples: dict[int, deque[tuple[float, Work]]] = {}
        self.suspects: set[int] = set()
        """Processes that may be slow; all slow ones are among them."""
        self.slow: dict[int, float] = {}
        """Slow processes, with their rates as parts of the median."""

    def sample(self, work: Mapping[int, Work], now: float) -> list[Change]:
        """Record what each living process has done. Returns those that became slow or recovered."""
        for id in self._samples.keys() - work.keys():
            del self._samples[id]
        for id, done in work.items():
            self._add(self._samples.setdefault(id, deque()), done, now)
        spans = {id: _span(of) for id, of in self._samples.items() if len(of) > 1}
        known = {id: s for id, s in spans.items() if s[0] >= _SUSPECT_S and s[1].busy_s > 0}
        compared = self._shares({id: done for id, (_, done) in known.items()})
        self.suspects = {id for id, share in compared.items() if share < _RECOVERED}
        found = []
        for id, share in compared.items():
            if id in self.slow:
                self.slow[id] = share
                changes = share >= _RECOVERED
            else:
                passed_s, done = known[id]
                is_busy = done.busy_s >= self._least_busy_s
                changes = share < SLOW and is_busy and passed_s >= WITHIN_S
            if changes:
                found.append(Change(id, share, id not in self.slow, len(compared)))
        for each in found:
            if each.is_slow:
                self.slow[each.id] = each.share
            else:
                del self.slow[each.id]
        self.slow = {id: share for id, share in self.slow.items() if id in work}
        return found

    @staticmethod
    def _add(samples: deque[tuple[float, Work]], done: Work, now: float) -> None:
        if samples and (done.amount < samples[-1][1].amount or done.busy_s < samples[-1][1].busy_s):
            samples.clear()  # the counts of another process, or of a restored model
        samples.append((now, done))
        while len(samples) > 2 and now - samples[1][0] >= WITHIN_S:
            samples.popleft()

    def _shares(self, done: Mapping[int, Work]) -> dict[int, float]:
        if not done or statistics.median(each.amount for each in done.values()) < self._least:
            return {}
        return shares({id: each.amount / each.busy_s for id, each in done.items()})


def shares(rates: Mapping[int, float]) -> dict[int, float]:
    """Return rates as parts of their median; empty if it is 0 or there is nothing to compare."""
    median = statistics.median(rates.values()) if len(rates) > 1 else 0.0
    return {id: rate / median for id, rate in rates.items()} if median else {}


def _span(samples: deque[tuple[float, Work]]) -> tuple[float, Work]:
    (then, first), (now, last) = samples[0], samples[-1]
    return now - then, Work(last.amount - first.amount, last.busy_s - first.busy_s)

"""Simulated time: what happens when, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Event:
    """Something that is to happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """It does not happen. An event that has happened may be cancelled, too."""
        self.action = None


class Clock:
    """A queue of events. Those of the same time happen in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the beginning."""
        self._queue: list[tuple[float, int, Event]] = []
        self._count = 0

    def after(self, delay_s: float, action: Action) -> Event:
        """Has something happen ``delay_s`` from now."""
        assert delay_s >= 0, f"{delay_s}: the past does not change"
        event = Event(action)
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, event))
        return event

    def every(self, interval_s: float, action: Callable[[], bool]) -> None:
        """Has something happen now and every ``interval_s``, as long as it returns True."""

        def again() -> None:
            if action():
                self.after(interval_s, again)

        self.after(0, again)

    def run(self, *, until_s: float = float("inf"), done: Callable[[], bool] | None = None) -> None:
        """Lets events happen until none is left, a time is reached, or ``done`` says so."""
        while self._queue and self._queue[0][0] <= until_s:
            if done is not None and done():
                return
            self.now, _, event = heapq.heappop(self._queue)
            action, event.action = event.action, None
            if action is not None:
                action()
        if until_s < float("inf"):
            self.now = max(self.now, until_s)

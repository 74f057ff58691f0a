"""The log of what happened in a job, and how fast the job goes. Pure."""

from __future__ import annotations

from collections import deque

from torch_edl.wire import master_pb2 as pb

_EVENTS = 1000
_WINDOW_S = 10.0
_SAMPLE_S = 0.5


class EventLog:
    """The last events, numbered from 1; a restarted master continues the numbers."""

    def __init__(self) -> None:
        self._kept: deque[pb.Event] = deque(maxlen=_EVENTS)
        self._count = 0

    def continue_after(self, sequence: int) -> None:
        """An earlier master of the job wrote the events up to that number."""
        assert not self._count, "events were added before"
        self._count = sequence

    def add(self, level: str, text: str, wall_time: float, traceback: str = "") -> None:
        """Appends one; ``wall_time`` in Unix seconds."""
        self._count += 1
        self._kept.append(
            pb.Event(
                sequence=self._count, time=wall_time, level=level, text=text, traceback=traceback
            )
        )

    def after(self, sequence: int) -> list[pb.Event]:
        """The events with a higher number that are still kept, in order."""
        new = min(self._count - sequence, len(self._kept))
        return [self._kept[i] for i in range(len(self._kept) - new, len(self._kept))]


class Rates:
    """Records and minibatches per second over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def sample(self, now: float, records: int, steps: int) -> None:
        """Notes how much is done; going back (after a restore) begins anew."""
        if self._samples:
            last = self._samples[-1]
            if records < last[1]:
                self._samples.clear()
            elif now - last[0] < _SAMPLE_S:
                return
        self._samples.append((now, records, steps))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float]:
        """(records, minibatches) per second; zeros before there are two samples."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        span = last[0] - first[0]
        return (last[1] - first[1]) / span, (last[2] - first[2]) / span

"""What happened, and how fast it goes. Pure."""

from __future__ import annotations

from collections import deque

from torch_edl.wire import master_pb2 as pb

_EVENTS = 1000
_WINDOW_S = 10.0
_SAMPLE_S = 0.5


class Events:
    """The last events, numbered from 1; a master that goes on numbers on."""

    def __init__(self) -> None:
        self._kept: deque[pb.Event] = deque(maxlen=_EVENTS)
        self._count = 0

    def go_on(self, sequence: int) -> None:
        """An earlier master of the job told events up to that number."""
        assert not self._count, "events were told before"
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
        """Those with a higher number that are still kept, in order."""
        new = min(self._count - sequence, len(self._kept))
        return [self._kept[i] for i in range(len(self._kept) - new, len(self._kept))]


class Course:
    """When the work of a job began and ended."""

    def __init__(self) -> None:
        self.began_at: float | None = None
        self.trained_at: float | None = None

    def began(self, now: float) -> None:
        """Somebody has something to do."""
        self.began_at = now if self.began_at is None else self.began_at

    def trained(self, now: float) -> None:
        """The work is done."""
        self.trained_at = now if self.trained_at is None else self.trained_at

    @property
    def state(self) -> str:
        """starting, running or finishing."""
        if self.began_at is None:
            return "starting"
        return "finishing" if self.trained_at is not None else "running"

    def wall_s(self, now: float) -> float:
        """Seconds from the beginning to the end, or to now."""
        if self.began_at is None:
            return 0.0
        return (now if self.trained_at is None else self.trained_at) - self.began_at


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

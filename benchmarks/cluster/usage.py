"""CPUs by what they are used for, over time."""

from __future__ import annotations

from collections import defaultdict

from benchmarks.cluster.events import Clock

CPUs = defaultdict[str, float]
Series = dict[str, list[float]]


class Usage:
    """How many CPUs each user has been given, and how many of them do what they are there for.

    The integrals are exact; the series are samples for a picture.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.now
        self.bound: CPUs = defaultdict(float)
        """CPUs of machines that pods of each user hold."""
        self.busy: CPUs = defaultdict(float)
        """CPUs of pods that have started, and have work."""
        self.bound_s: CPUs = defaultdict(float)
        """CPU seconds."""
        self.busy_s: CPUs = defaultdict(float)
        self.times: list[float] = []
        self.series: dict[str, Series] = {"bound": {}, "busy": {}}

    def add(self, counter: CPUs, user: str, cpus: float) -> None:
        """A user has so many CPUs more, or less."""
        self._integrate()
        counter[user] += cpus

    def _integrate(self) -> None:
        elapsed, self._since = self._clock.now - self._since, self._clock.now
        if not elapsed:
            return
        for users, total in ((self.bound, self.bound_s), (self.busy, self.busy_s)):
            for user, cpus in users.items():
                total[user] += cpus * elapsed

    def sample(self) -> bool:
        """Appends the state of now to the series."""
        self._integrate()
        self.times.append(self._clock.now)
        for kind, users in (("bound", self.bound), ("busy", self.busy)):
            for user, cpus in users.items():
                series = self.series[kind].setdefault(user, [0] * (len(self.times) - 1))
                series.append(cpus)
        return True

    def total(self, kind: str) -> list[float]:
        """The sum over all users at each sample."""
        return [sum(at) for at in zip(*self.series[kind].values(), strict=True)]

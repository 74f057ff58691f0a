"""The end of a job's processes: workers leave first, then servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from master.state.workforce.processes import STOPPING, Participant, Process


class Ending:
    """When the processes of a job that is over are stopped."""

    def __init__(self) -> None:
        self.hurries = False
        """True if everything stops at once."""
        self._by: float | None = None

    @property
    def begun(self) -> bool:
        """True once the job is over."""
        return self._by is not None

    def begin(self, now: float, *, leave_s: float) -> None:
        """End all processes; a later call may only shorten the time.

        Args:
            leave_s: seconds that workers have to leave, with servers staying until then; 0 stops
                everything at once.
        """
        self.hurries = leave_s <= 0
        if self._by is None or now + leave_s < self._by:
            self._by = now + leave_s

    def due(self, processes: Iterable[Process], now: float) -> list[Process]:
        """Return the processes to stop now."""
        assert self._by is not None
        running, late = list(processes), now >= self._by
        # Workers leave before servers: they may still need them.
        waits = any(process.role == "worker" for process in running) and not self.hurries
        return [
            process
            for process in running
            if process.state != STOPPING
            and (process.role == "worker" or not waits)
            # A worker without a model is stopped at once: it would receive the end only after
            # seconds.
            and (process.role == "ps" or late or not _is_ready(process))
        ]


def _is_ready(process: Process) -> bool:
    return isinstance(process, Participant) and process.ready

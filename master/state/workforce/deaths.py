"""Consequences of the exits of processes: replacements, pauses, the failure of the job. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from master.state.actions import Failure
from master.state.workforce.processes import Participant
from torch_edl.events import Way
from torch_edl.processes.launcher import ProcessExit

# Consecutive crashes without training after which the job fails.
CRASH_LIMIT = 5
# Consecutive SIGKILLs before anything was ever trained, after which the job fails. SIGKILL mostly
# means preemption, but the kernel also sends it when memory is short.
KILL_LIMIT = 30
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
_MOST_DOUBLINGS = 10
# Seconds after which a killed worker of a script shows that workers fit into memory. A script that
# does not use torch_edl reports no progress.
_FITS_S = 60.0
# This number of consecutive lost workers of a script is replaced at once; further ones after a
# pause.
_AT_ONCE = 3
_PAUSE_S = 1.0
# The master learns of the steps of the job with a delay of a few seconds.
_SAME_MOMENT_S = 10.0


@dataclass(frozen=True)
class Gone:
    """A process ended; its tasks or its shard are free."""

    process: str
    """Name of the process."""
    way: Way
    cause: str
    """Cause of the end, as in :class:`torch_edl.events.Loss`."""
    expected: bool = False
    """True for a worker that was asked to leave."""
    declared: bool = False
    """True if the process was declared lost before it ended."""


@dataclass(frozen=True)
class _Round:
    """Failures of the workers of one machine that were counted."""

    count: int = 0
    at: float = float("-inf")
    """Time of the last one."""
    progress: int = 0
    """Progress of the job at that time."""


class Deaths:
    """Counts of process deaths since the last training progress. Exits by SIGTERM never count, and
    SIGKILLs only before anything was trained: both may be preemptions.

    Args:
        max_restarts: number of failures of each machine after which workers of a script are
            replaced, ``--max-restarts`` of torchrun; None for a model file, whose crashes count
            until something is trained.
    """

    def __init__(self, max_restarts: int | None = None) -> None:
        self._max_restarts = max_restarts
        self._rounds: dict[str, _Round] = {}
        self._progress = 0
        self.start_after = 0.0
        """Time before which no worker is started."""
        self.trained = False
        """True once anything was trained: the job fits into the memory of its machines."""
        self._counts = Counter[str]()

    def forget(self) -> None:
        """Reset the counts: something was trained."""
        self.trained = True
        self._progress += 1
        self._counts.clear()

    def of_server(self, exit: ProcessExit, gone: Gone, named: str) -> Gone | Failure:
        """Return the consequence of the exit of a server that had a shard. ``named`` is a sentence
        about it, with the path of the log."""
        failure = None
        if exit.was_killed:
            failure = self._killed("parameter servers were", named)
        elif not (exit.was_taken or exit.was_terminated):
            failure = self._crashed("a parameter server", named)
        return failure or gone

    def of_worker(
        self, exit: ProcessExit, gone: Gone, named: str, now: float, *, process: Participant
    ) -> Gone | Failure:
        """Return the consequence of the exit of a worker that was not asked to leave."""
        failure = None
        if exit.was_taken:
            # A script may run for a while before it registers.
            if not (process.heard or (self._max_restarts is not None and process.pid)):
                # A machine that rejects workers would do so at once, for ever.
                refusals = self._counts["refusals"] = self._counts["refusals"] + 1
                pause_s = _FIRST_BACKOFF_S * 2 ** min(refusals, _MOST_DOUBLINGS)
                self.start_after = max(self.start_after, now + min(pause_s, _LONGEST_BACKOFF_S))
        elif self._max_restarts is not None and (exit.error or exit.is_preemption):
            failure = self._of_script(exit, named, now, process, self._max_restarts)
        elif process.trained:
            pass
        elif exit.was_killed:
            failure = self._killed("workers were", named)
        else:
            failure = self._crashed("workers", named)
            # The first replacement starts at once: a single death is more likely a preemption.
            if (crashes := self._counts["workers"]) > 1:
                self.start_after = now + _FIRST_BACKOFF_S * 2 ** (crashes - 2)
        return failure or gone

    def ends_job(self, process: Participant) -> bool:
        """Return whether a failure of a script's worker would end the job."""
        limit, counted = self._max_restarts, self._rounds.get(process.node, _Round())
        return limit is not None and counted.count >= limit

    def _of_script(
        self, exit: ProcessExit, named: str, now: float, process: Participant, max_restarts: int
    ) -> Failure | None:
        """Return the failure of the job that follows from the exit of a script's worker, if any.

        One error often ends several workers of a machine. Their failures count as one: those of
        workers that were already running at the last counted failure, if no step was made since.
        """
        failure = Failure(exit.error or named, exit.traceback)
        # Clusters and cloud providers usually send SIGTERM first, then SIGKILL.
        if exit.is_preemption:
            self._counts["lost"] += 1
            if self._counts["lost"] > _AT_ONCE:
                self.start_after = max(self.start_after, now + _PAUSE_S)
            if self.trained or now - process.started_at >= _FITS_S:
                self._counts["kills"] = 0
                return None
            if exit.lacked_memory:
                self._counts["short"] += 1
                return failure if self._counts["short"] > CRASH_LIMIT else None
            killed = exit.was_killed and self._killed("workers were", named)
            return killed or None
        counted = self._rounds.get(process.node, _Round())
        went_on = self._progress > counted.progress and now - counted.at > _SAME_MOMENT_S
        if process.started_at <= counted.at and not went_on:
            return None
        if counted.count >= max_restarts:
            return failure
        self._rounds[process.node] = _Round(counted.count + 1, now, self._progress)
        return None

    def to_state(self) -> dict[str, Any]:
        return {
            "trained": self.trained,
            "restarts": {machine: each.count for machine, each in self._rounds.items()},
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self.trained = state["trained"]
        # Failures that have the same cause as the last counted one are counted again at most once.
        self._rounds = {name: _Round(count) for name, count in state["restarts"].items()}

    def _killed(self, who: str, text: str) -> Failure | None:
        if self.trained:
            return None
        self._counts["kills"] += 1
        if self._counts["kills"] < KILL_LIMIT:
            return None
        return Failure(
            f"{who} killed {KILL_LIMIT} times in a row before anything was trained; "
            f"is there enough memory? {text}"
        )

    def _crashed(self, who: str, text: str) -> Failure | None:
        self._counts[who] += 1
        if self._counts[who] < CRASH_LIMIT:
            return None
        return Failure(
            f"{who} died {CRASH_LIMIT} times in a row before anything was trained; {text}"
        )

"""Consequences of the exits of processes: replacements, pauses, the failure of the job. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

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


class Deaths:
    """Counts of process deaths since the last training progress. Exits by SIGTERM never count, and
    SIGKILLs only before anything was trained: both may be preemptions."""

    def __init__(self) -> None:
        self.start_after = 0.0
        """Time before which no worker is started."""
        self.trained = False
        """True once anything was trained: the job fits into the memory of its machines."""
        self._counts = Counter[str]()

    def forget(self) -> None:
        """Reset the counts: something was trained."""
        self.trained = True
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
            if not process.heard:
                # A machine that rejects workers would do so at once, for ever.
                refusals = self._counts["refusals"] = self._counts["refusals"] + 1
                pause_s = _FIRST_BACKOFF_S * 2 ** min(refusals, _MOST_DOUBLINGS)
                self.start_after = max(self.start_after, now + min(pause_s, _LONGEST_BACKOFF_S))
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

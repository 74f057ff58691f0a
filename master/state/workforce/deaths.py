"""Consequences of the exits of processes: replacements, pauses, the failure of the job. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from master.state.actions import Failure
from master.state.workforce.processes import Participant
from torch_edl.processes.launcher import ProcessExit


@dataclass(frozen=True)
class Gone:
    """A process ended, and its tasks or its shard are free; the loss of a server may lose the
    model."""

    text: str
    expected: bool = False
    """True for a worker that was asked to leave."""


# Consecutive crashes without training after which the job fails.
CRASH_LIMIT = 5
# Consecutive SIGKILLs before anything was ever trained, after which the job fails. SIGKILL mostly
# means preemption, but the kernel also sends it when memory is short.
KILL_LIMIT = 30
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0


class Deaths:
    """Counts of process deaths since the last training progress.

    Preempted processes do not count: exits by SIGTERM never do, SIGKILLs only before anything was
    trained.
    """

    def __init__(self) -> None:
        self.start_after = 0.0
        """Time before which no worker is started."""
        self.trained = False
        """True once anything was trained: the job fits into the memory of its machines."""
        self._crashes = 0
        self._kills = 0
        self._servers = 0
        self._refusals = 0

    def forget(self) -> None:
        """Reset the counts: something was trained."""
        self.trained = True
        self._crashes = self._kills = self._servers = self._refusals = 0

    def of_server(self, exit: ProcessExit, text: str, named: str) -> Gone | Failure:
        """Return the consequence of the exit of a server that had a shard.

        Args:
            text: how it ended.
            named: the same, with the path of its log.
        """
        failure = None
        if exit.was_killed:
            failure = self.killed("parameter servers", named)
        elif not (exit.was_taken or exit.was_terminated):
            failure = self.server(named)
        return failure or Gone(text)

    def of_worker(
        self, exit: ProcessExit, text: str, named: str, now: float, *, process: Participant
    ) -> Gone | Failure:
        """Return the consequence of the exit of a worker that was not asked to leave.

        Args:
            text: how it ended.
            named: the same, with the path of its log.
        """
        failure = None
        if exit.was_taken:
            if not process.heard:
                self.refused(now)
        elif process.trained:
            pass
        elif exit.was_killed:
            failure = self.killed("workers", named)
        else:
            failure = self.worker(named, now)
        return failure or Gone(text)

    def refused(self, now: float) -> None:
        """Delay the next start: a worker was taken away before it registered, and a machine that
        rejects workers would do so at once, for ever."""
        self._refusals = min(self._refusals + 1, 10)
        pause_s = min(_FIRST_BACKOFF_S * 2**self._refusals, _LONGEST_BACKOFF_S)
        self.start_after = max(self.start_after, now + pause_s)

    def killed(self, role: str, text: str) -> Failure | None:
        """Count a SIGKILL. Returns a Failure if the job is to fail.

        Args:
            role: ``workers`` or ``parameter servers``.
            text: how the process ended.
        """
        if self.trained:
            return None
        self._kills += 1
        if self._kills < KILL_LIMIT:
            return None
        return Failure(
            f"{role} were killed {KILL_LIMIT} times in a row before anything was trained; "
            f"is there enough memory? {text}"
        )

    def worker(self, text: str, now: float) -> Failure | None:
        """Count a crash of a worker that has trained nothing. Returns a Failure if the job is to
        fail."""
        self._crashes += 1
        # The first replacement starts at once: a single death is more likely a preemption.
        if self._crashes > 1:
            self.start_after = now + _FIRST_BACKOFF_S * 2 ** (self._crashes - 2)
        if self._crashes >= CRASH_LIMIT:
            return Failure(
                f"workers died {CRASH_LIMIT} times in a row before anything was trained; {text}"
            )
        return None

    def server(self, text: str) -> Failure | None:
        """Count a crash of a parameter server. Returns a Failure if the job is to fail."""
        self._servers += 1
        if self._servers < CRASH_LIMIT:
            return None
        return Failure(
            f"a parameter server died {CRASH_LIMIT} times in a row before anything was trained; "
            f"{text}"
        )

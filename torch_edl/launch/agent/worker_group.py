"""The workers of one agent as a group: how many run, and what happens to those that ended."""

from __future__ import annotations

import enum
import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from torch_edl.launch.agent.workers import LocalWorker, Placement, Workers
from torch_edl.processes.launcher import ended_by
from torch_edl.processes.script_marks import is_failing
from torch_edl.processes.signals import describe_exit

log = logging.getLogger(__name__)

# Number of workers killed by SIGKILL soon after their start, before the first step of the job, that
# shows that workers do not fit into memory.
MAX_KILLED = 30
# The same limit if the kernel reports that memory was short.
MAX_OOM_KILLED = 5
_SOON_S = 60.0
# This number of consecutive lost workers is replaced at once; further ones after a pause.
_AT_ONCE = 3
_PAUSE_S = 1.0
# The agent learns the steps of the job with a delay of a few seconds.
_SAME_MOMENT_S = 10.0


class RestartDecision(enum.Enum):
    """Action for an ended worker."""

    DONE = "the script of the worker is over"
    STOPPED = "the agent has stopped the worker"
    REPLACE = "another worker takes its place"
    FAIL = "the job cannot continue"


@dataclass(kw_only=True)
class RestartPolicy:
    """Decides about the workers of one agent and counts their ends."""

    max_restarts: int
    """Rounds of failures after which workers are replaced; ``--max-restarts`` of torchrun."""
    restarts: int = 0
    """Rounds of failures so far."""
    lost_in_a_row: int = 0
    """Preempted workers since the last step of the job."""
    killed: int = 0
    """Workers killed soon after their start, before the first step of the job."""
    _steps: int = 0
    _counted_at: float = float("-inf")
    _counted_steps: int = 0

    def decide(
        self,
        code: int,
        *,
        in_loop: bool = False,
        oom: bool = False,
        stopping: bool,
        steps: int,
        started_at: float,
        now: float,
    ) -> RestartDecision:
        """Decide about an ended worker.

        One error often ends several workers. Their failures count as one round: those of workers
        that were already running at the last counted failure, if no step was made since.

        Args:
            code: exit code of the worker; -N if signal N ended it.
            in_loop: True if the worker ended with exit code 0 in a loop over a loader.
            oom: True if the kernel killed the worker because memory was short.
            stopping: True if this agent stopped the worker.
            started_at: start time of the worker, by the clock of ``now``.
        """
        if code == 0 and not in_loop:
            return RestartDecision.DONE
        if stopping:
            return RestartDecision.STOPPED
        # Clusters and cloud providers usually send SIGTERM first, then SIGKILL.
        if ended_by(code, signal.SIGTERM, signal.SIGKILL):
            self.lost_in_a_row = 1 if steps > self._steps else self.lost_in_a_row + 1
            self._steps = max(steps, self._steps)
            # A script that does not use torch_edl reports no steps.
            fits = self._steps > 0 or now - started_at >= _SOON_S
            if fits or not ended_by(code, signal.SIGKILL):
                self.killed = 0 if fits else self.killed
                return RestartDecision.REPLACE
            self.killed += 1
            limit = MAX_OOM_KILLED if oom else MAX_KILLED
            return RestartDecision.REPLACE if self.killed <= limit else RestartDecision.FAIL
        went_on = steps > self._counted_steps and now - self._counted_at > _SAME_MOMENT_S
        if started_at <= self._counted_at and not went_on:
            return RestartDecision.REPLACE
        if self.restarts < self.max_restarts:
            self.restarts += 1
            self._counted_at, self._counted_steps = now, steps
            return RestartDecision.REPLACE
        return RestartDecision.FAIL

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next lost worker is replaced."""
        return _PAUSE_S if self.lost_in_a_row > _AT_ONCE else 0.0


class WorkerGroup:
    """Keeps the wanted number of workers running, until they complete the script or one fails."""

    def __init__(self, workers: Workers, *, wanted: int, max_restarts: int) -> None:
        self.workers = workers
        self.wanted = wanted
        self.failures: dict[int, ProcessFailure] = {}
        """Failures that end the job, by rank."""
        self._policy = RestartPolicy(max_restarts=max_restarts)
        self._done: set[int] = set()
        self._start_at: dict[int, float] = {}
        self._shown: list[LocalWorker] = []
        """Workers whose output is shown: running workers, and those that ended last."""

    @property
    def is_done(self) -> bool:
        """True if the wanted workers have completed the script."""
        return not self.workers.running and self._done.issuperset(range(self.wanted))

    def heed_failures(self, *, grace_s: float) -> bool:
        """Stop the other workers if a worker fails and no restart is left; return True while the
        process of that worker has not ended. Otherwise, the others would train until its end."""
        if self._policy.restarts < self._policy.max_restarts:
            return False
        running = self.workers.running
        failing = {worker.local_rank for worker in running if is_failing(worker.error_file)}
        if failing:
            self.workers.stop(self.workers.local_ranks - failing, grace_s=grace_s)
        return bool(failing)

    @property
    def is_replacing(self) -> bool:
        """True if a replacement is due to start."""
        return bool(self._start_at)

    def reap(self, *, steps: int, replaces: bool, now: float) -> list[LocalWorker]:
        """Return the workers that ended since the last call, and decide what happens to each; lost
        ones are replaced unless the workers shall end."""
        ends = self.workers.reap()
        for worker in ends:
            assert worker.code is not None
            decision = self._policy.decide(
                worker.code,
                in_loop=worker.open_loop is not None,
                oom=bool(worker.why),
                stopping=worker.stopping,
                steps=steps,
                started_at=worker.started_at,
                now=now,
            )
            if decision is RestartDecision.DONE:
                self._done.add(worker.local_rank)
            elif decision is RestartDecision.REPLACE and replaces:
                where = " inside its loop" if worker.open_loop is not None else ""
                how = describe_exit(worker.code) + f": {worker.why}" * bool(worker.why)
                log.warning(
                    "rank %d (pid %d) ended (%s)%s: starting a replacement", worker.rank,
                    worker.pid, how, where,
                )  # fmt: skip
                self._start_at[worker.local_rank] = now + self._policy.pause_s
            elif decision is RestartDecision.FAIL or (
                self.failures and decision is RestartDecision.STOPPED
            ):
                self.failures[worker.rank] = worker.failure()
        return ends

    def balance(self, placement: Placement, *, grace_s: float, now: float) -> bool:
        """Start missing workers and stop surplus workers; return True if workers were started."""
        running = self.workers.local_ranks
        surplus = {rank for rank in running if rank >= self.wanted}
        self.workers.stop(surplus, grace_s=grace_s)
        due = {
            rank
            for rank in set(range(self.wanted)) - running - self._done
            if self._start_at.get(rank, now) <= now
        }
        # After one worker has completed the script, a new worker would have nothing to do.
        if self._done:
            due &= self._start_at.keys()
        if not (due and self.workers.are_ready):
            return False
        for rank in due:
            self._start_at.pop(rank, None)
        started = self.workers.start(due, placement)
        self._shown = [worker for worker in self._shown if worker.code is None] + started
        return True

    def start_no_more(self) -> None:
        """Forget the replacements that are due."""
        self._start_at.clear()

    def stop(self, *, grace_s: float) -> None:
        """Stop all workers, and start no more."""
        self.start_no_more()
        self.workers.stop(self.workers.local_ranks, grace_s=grace_s)

    def output(self, *, now: float, final: bool) -> Iterator[tuple[int, str, bytes]]:
        """Yield rank, stream and text of each new line of the workers, and the lines of a traceback
        together."""
        for worker in self._shown:
            for stream, line in worker.output(now=now, final=final):
                yield worker.rank, stream, line

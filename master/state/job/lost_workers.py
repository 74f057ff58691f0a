"""Workers of a job that are lost: ended, silent, or without progress. Pure."""

from __future__ import annotations

from master.state.actions import Failure
from master.state.lifecycle import Lifecycle
from master.state.membership import Membership, Preemption
from master.state.ring import Ring
from master.state.work.suspect_spans import SuspectSpans
from master.state.work.suspects import verdict
from master.state.work.task_scheduler import TaskScheduler
from master.state.workforce.workforce import WorkerGone, Workforce
from torch_edl.config import JobConfig
from torch_edl.events import RecordsSkipped, Way, WorkerLost, WorkerWaited
from torch_edl.processes.launcher import ProcessExit

# Seconds before the task timeout at which a worker without progress is asked for its stacks.
_ASK_STACKS_S = 5.0


class LostWorkers:
    """Removes lost workers from the parts of a job; a silent worker and one that is stuck are
    declared lost."""

    def __init__(
        self,
        config: JobConfig,
        lifecycle: Lifecycle,
        members: Membership,
        tasks: TaskScheduler,
        ring: Ring,
        spans: SuspectSpans,
        workforce: Workforce,
    ) -> None:
        self._config = config
        self._cluster = config.cluster
        self._is_script = config.kind == "script"
        self._lifecycle = lifecycle
        self._members = members
        self._tasks = tasks
        self._ring = ring
        self._spans = spans
        self._workforce = workforce
        self._late: set[int] = set()  # workers asked for their stacks

    def event(
        self, process: str, way: Way, cause: str, *, silent_s: float = 0.0, stacks: str = ""
    ) -> WorkerLost:
        """Return the event of the loss of a worker."""
        returned = self._tasks.ready and not self._tasks.lockstep
        return WorkerLost(
            process=process,
            way=way,
            cause=cause,
            silent_s=silent_s,
            returned=returned,
            stacks=stacks,
        )

    def drop(self, worker: int, now: float) -> Preemption | None:
        """Remove a worker; its tasks return to the queue. Returns the cost of its preemption, if
        there was one."""
        member = self._members.get(worker)
        cost = member.cost(now, in_ring=self._tasks.lockstep) if member is not None else None
        if member is not None and (waited_s := member.waits_s(now)):
            waited = WorkerWaited(process=f"worker-{worker}", seconds=round(waited_s, 1))
            self._lifecycle.note(waited, now)
        why = "worker left" if member is not None and member.draining else "worker lost"
        self._members.remove(worker)
        self._tasks.drop_worker(worker, why)
        self._ring.drop(worker)
        return cost

    def blame(self, exit: ProcessExit, now: float, *, log: str) -> None:
        """Count the death of a worker that is not dropped yet against the records it trained."""
        in_span, event = self._blame_span(exit, now, log=log)
        match event if in_span else self._tasks.died(exit, now, log=log):
            case RecordsSkipped() as skipped:
                self._lifecycle.note(skipped, now)
            case Failure() as failure:
                self._lifecycle.fail(failure.error, now)

    def _blame_span(
        self, exit: ProcessExit, now: float, *, log: str
    ) -> tuple[bool, RecordsSkipped | Failure | None]:
        """Count the death of a member of a ring against the span that the member trained. Returns
        whether the death counts, and the event that follows (None: no event)."""
        if exit.id not in self._ring.living() or exit.was_terminated or exit.was_taken:
            return False, None
        suspect = self._spans.died(exit.id, now, by_kill=exit.was_killed)
        if suspect is None or suspect.deaths < self._cluster.max_task_failures:
            return suspect is not None, None
        skips = self._tasks.lockstep and not self._is_script
        event = verdict(self._config, exit, suspect.span.name, log=log, skips=skips)
        if isinstance(event, RecordsSkipped):
            self._spans.skip(suspect)
        return True, event

    def lose(
        self, event: WorkerGone, now: float, stacks: str = "", *, silent_s: float = 0.0
    ) -> None:
        """Handle the loss of a worker.

        Args:
            stacks: stacks of its threads, for the event; empty if there are none.
            silent_s: seconds without a heartbeat or a step of the worker before its loss.
        """
        member = self._members.get(event.worker)
        if member is not None and self._lifecycle.outcome is None:
            lost = self.event(
                f"worker-{event.worker}",
                "silent" if event.declared else "gone",
                event.why,
                silent_s=silent_s,
                stacks=stacks,
            )
            self._lifecycle.note(lost, now)
        self.drop(event.worker, now)

    def tick(self, now: float) -> None:
        """Declare silent workers and workers without progress lost."""
        why = f"no heartbeat for {self._cluster.heartbeat_timeout_s:g} s"
        for member in self._members.silent(now):
            if self._lifecycle.counts_silence(member.last_heartbeat, now):
                self._declare(member.id, why, now, silent_s=now - member.last_heartbeat)
        self._end_stuck(now)

    def _end_stuck(self, now: float) -> None:
        """Declare workers without progress lost, after requesting the stacks of their threads."""
        cluster = self._cluster
        late = self._tasks.late(now + min(_ASK_STACKS_S, cluster.task_timeout_s / 2))
        for asked in filter(None, map(self._members.get, late - self._late)):
            asked.ask_stacks()
        self._late = late
        for lease, count in self._tasks.expire(now):
            member, task = self._members.get(lease.worker), lease.task
            stacks = member.newest_stacks if member is not None else ""
            why = f"no step for {cluster.task_timeout_s:g} s (--task-timeout)"
            self._declare(lease.worker, why, now, stacks.rstrip(), silent_s=cluster.task_timeout_s)
            if count >= cluster.max_task_failures:
                last = f"{task.start} to {task.end - 1} of {task.shard}"
                text = f"worker-{lease.worker}: {why} in a task of the records {last}"
                tries = f"; the task was tried {count} times" if count > 1 else ""
                fix = "the user's code hangs, or a longer --task-timeout is needed"
                self._lifecycle.fail(f"{text}{tries}: {fix}", now, traceback=stacks)

    def _declare(
        self, worker: int, why: str, now: float, stacks: str = "", *, silent_s: float
    ) -> None:
        self._workforce.declare_lost(worker, why)
        self.lose(WorkerGone(worker, why, declared=True), now, stacks, silent_s=silent_s)

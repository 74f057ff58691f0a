"""Workers of a job that are lost: ended, silent, or without progress. Pure."""

from __future__ import annotations

from master.state.actions import Failure, Note
from master.state.lifecycle import Lifecycle
from master.state.membership import Membership
from master.state.ring import Ring
from master.state.work.suspect_spans import SuspectSpans
from master.state.work.suspects import verdict
from master.state.work.task_scheduler import TaskScheduler
from master.state.workforce.workforce import WorkerLost, Workforce
from torch_edl.config import JobConfig
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

    @property
    def consequence(self) -> str:
        """What the loss of a worker means, for events."""
        together = self._tasks.lockstep or not self._tasks.ready
        return "the other workers continue" if together else "its tasks were returned to the queue"

    def drop(self, worker: int, now: float) -> str:
        """Remove a worker; its tasks return to the queue. Returns the cost of its preemption, for
        the event of its end."""
        member = self._members.get(worker)
        cost = member.cost(now, in_ring=self._tasks.lockstep) if member is not None else ""
        why = "worker left" if member is not None and member.draining else "worker lost"
        self._members.remove(worker)
        self._tasks.drop_worker(worker, why)
        self._ring.drop(worker)
        return cost

    def blame(self, exit: ProcessExit, now: float, *, log: str) -> None:
        """Count the death of a worker that is not dropped yet against the records it trained."""
        in_span, event = self._blame_span(exit, now, log=log)
        match event if in_span else self._tasks.died(exit, now, log=log):
            case Note() as note:
                self._lifecycle.note(note.level, note.text, now)
            case Failure() as failure:
                self._lifecycle.fail(failure.error, now)

    def _blame_span(
        self, exit: ProcessExit, now: float, *, log: str
    ) -> tuple[bool, Note | Failure | None]:
        """Count the death of a member of a ring against the span that the member trained. Returns
        whether the death counts, and the event that follows (None: no event)."""
        if exit.id not in self._ring.living() or exit.was_terminated or exit.was_taken:
            return False, None
        suspect = self._spans.died(exit.id, now, by_kill=exit.was_killed)
        if suspect is None or suspect.deaths < self._cluster.max_task_failures:
            return suspect is not None, None
        skips = self._tasks.lockstep and not self._is_script
        event = verdict(self._config, exit, suspect.span.name, log=log, skips=skips)
        if isinstance(event, Note):
            self._spans.skip(suspect)
        return True, event

    def lose(
        self, event: WorkerLost, now: float, shown: str = "", *, silent_s: float = 0.0
    ) -> None:
        """Handle the loss of a worker.

        Args:
            shown: further text of the event.
            silent_s: seconds without a heartbeat or a step of the worker before its loss.
        """
        member = self._members.get(event.worker)
        if event.ended_well is not None:
            asked = member is not None and member.draining
            self._ring.exited(event.worker, well=event.ended_well and not asked)
        if member is not None and self._lifecycle.outcome is None:
            how = f"{'declared ' * event.declared}lost: {event.why}"
            text = f"worker-{event.worker} {how}; {self.consequence}{shown}"
            self._lifecycle.note("warning", text, now)
            role = "worker" if self._is_script else ""  # the exits of other workers are counted
            self._lifecycle.disrupted(now, lost=role, silent_s=silent_s)
            if event.exit is not None and not member.draining:
                self.blame(event.exit, now, log=event.log)
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
            shown = f". Its threads:\n{stacks.rstrip()}" if stacks else ""
            self._declare(lease.worker, why, now, shown, silent_s=cluster.task_timeout_s)
            if count >= cluster.max_task_failures:
                last = f"{task.start} to {task.end - 1} of {task.shard}"
                text = f"worker-{lease.worker}: {why} in a task of the records {last}"
                tries = f"; the task was tried {count} times" if count > 1 else ""
                fix = "the user's code hangs, or a longer --task-timeout is needed"
                self._lifecycle.fail(f"{text}{tries}: {fix}", now, traceback=stacks)

    def _declare(
        self, worker: int, why: str, now: float, shown: str = "", *, silent_s: float
    ) -> None:
        self._workforce.declare_lost(worker, why)
        self.lose(WorkerLost(worker, why, declared=True), now, shown, silent_s=silent_s)

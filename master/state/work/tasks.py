"""A queue of tasks: open, leased and done. Pure. Memory is used only for tasks that are leased,
that were returned, or that are done out of order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from master.state.membership import Member, Membership
from master.state.work.leases import FirstRecords, Hand, Lease
from master.state.work.ledger import TaskLedger
from master.state.work.progress import TaskProgress
from master.state.work.suspects import Suspects
from torch_edl.data.stream_space import AnySpace
from torch_edl.data.task_space import Task
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


class TaskQueue(TaskProgress):
    """One sequence of tasks, leased in the order of ids, returned tasks first.

    Args:
        lease_ids: ids for leases, shared by the queues of a job.
        timeout_s: seconds without progress after which a worker's leases expire.
        kind: what the tasks are for.
        states: merged metric states, for TASK_SUMMARIZE.
        directory: folder to write to, for TASK_SNAPSHOT.
        ledger: records what happens to the tasks; None: nothing does.
    """

    def __init__(
        self,
        space: AnySpace,
        *,
        lease_ids: Iterator[int],
        timeout_s: float = 600.0,
        kind: pb.TaskKind = pb.TASK_TRAIN,
        states: Sequence[pb.MetricState] = (),
        directory: str = "",
        ledger: TaskLedger | None = None,
    ) -> None:
        super().__init__(space)
        self.timeout_s = timeout_s
        self.kind = kind
        self.directory = directory
        self._states = states
        self._ledger = ledger
        self._lease_ids = lease_ids
        self._failures: dict[int, int] = {}
        self._hands: dict[int, Hand] = {}  # workers that hold leases, ordered by deadline
        self._moved: set[int] = set()
        self._first = FirstRecords()
        self.suspects = Suspects()
        self._clear(Watermarks())

    def _clear(self, progress: Watermarks) -> None:
        self._doing: dict[int, Lease] = {}
        self._moved.update(self._hands)
        self._hands.clear()
        self._back: list[int] = []  # heap of returned tasks
        self._waiting: dict[int, int] = {}  # returned task -> its last lease, 0: none
        self._late: dict[int, int] = {}  # last lease -> returned task
        self._retried: set[int] = set()
        self._reset(progress.retired_before)
        self._next = first = self._retired
        watermarks = {
            id: mark
            for id, mark in progress.offsets.items()
            if first <= id < self.space.total and mark > 0
        }
        if not watermarks:
            return
        self._next = max(watermarks) + 1
        for id in range(first, self._next):
            if watermarks.get(id, 0) >= self.space.task(id).records:
                self._finish(self.space.task(id))
                continue
            if id in watermarks:
                self._commit(id, watermarks[id])
            self._return(id, 0)

    # ---- what it says ----

    @property
    def doing(self) -> int:
        """Number of leased tasks."""
        return len(self._doing)

    @property
    def todo(self) -> int:
        """Number of tasks that are neither leased nor done."""
        return self.space.total - self.done - self.doing

    def has(self, lease_id: int) -> bool:
        """Return whether a worker holds this lease."""
        return lease_id in self._doing

    def held_by(self, worker: int) -> Sequence[Lease]:
        """Return the leases of a worker, oldest first."""
        hand = self._hands.get(worker)
        return () if hand is None else tuple(hand.leases.values())

    def open_steps(self, worker: int) -> tuple[int, int]:
        """Return (records, minibatches) that were open when the worker's leases were granted."""
        hand = self._hands.get(worker)
        return (0, 0) if hand is None else (hand.records, hand.steps)

    def take_moved(self) -> set[int]:
        """Return the workers whose :meth:`open_steps` may have changed since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    # ---- what happens to it ----

    def take_next(
        self, worker: int, now: float, *, before: int | None = None, alone: bool = True
    ) -> Lease | None:
        """Lease the next task below ``before`` to a worker; None if no task is open, or if the next
        one is a suspect and the worker is not ``alone``: it holds another task."""
        limit = self.space.total if before is None else min(before, self.space.total)
        while self._back and self._back[0] not in self._waiting:
            heapq.heappop(self._back)
        if self._back and self._back[0] < limit:
            id = self._back[0]
            if id in self.suspects and not alone:
                return None
            heapq.heappop(self._back)
            self._late.pop(self._waiting.pop(id), None)
            self.suspects.leased(id)
        else:
            if self._next >= limit:
                return None
            id = self._next
            self._next += 1
        lease = Lease(
            next(self._lease_ids),
            self.space.task(id),
            worker,
            self._offsets.get(id, 0),
            id in self._retried,
            now,
        )
        self._hold(lease, now)
        return lease

    def message(self, lease: Lease) -> pb.LeaseMessage:
        """Return the lease as it is sent to a worker."""
        task = lease.task
        shard = self.space.shard(task.shard)
        return pb.LeaseMessage(
            lease_id=lease.id,
            kind=self.kind,
            task_id=task.id,
            shard=task.shard,
            start=task.start,
            end=task.end,
            epoch=task.epoch,
            offset=lease.offset,
            retried=lease.retried,
            states=self._states,
            directory=self.directory,
            shard_records=shard.records,
            shard_size=shard.size,
            shard_mtime_ns=shard.mtime_ns,
            first=self._first.of(task.id),
            suspect=task.id in self.suspects,
            skip=[pb.TaskStep(first=a, last=b) for a, b in self.suspects.skipped(task.id)],
        )

    def begun(self, request: pb.BeginTaskRequest, now: float) -> None:
        """Record the first records that a worker read of a task, or its step in a suspect."""
        if (lease := self._doing.get(request.lease_id)) is None:
            return
        if request.HasField("first"):
            self._first.put(lease.task.id, request.first)
        if request.HasField("step"):
            self.suspects.report(lease.task.id, request.step, now)

    def holds_suspect(self, worker: int) -> bool:
        """Return whether a worker holds a suspect."""
        return any(lease.task.id in self.suspects for lease in self.held_by(worker))

    def _hold(self, lease: Lease, now: float) -> None:
        self._doing[lease.id] = lease
        hand = self._hands.get(lease.worker)
        if hand is None:
            hand = self._hands[lease.worker] = Hand(now + self.timeout_s)
        hand.add(lease, self._open_steps(lease))
        self._moved.add(lease.worker)

    def _open_steps(self, lease: Lease) -> int:
        return self.space.steps_of(lease.task.records) - self.space.steps_of(lease.offset)

    def advance(self, records: int) -> None:
        """Mark the first ``records`` records, in the order of tasks, as done; a lower number is
        ignored. For tasks that a ring processes in lockstep: none is leased."""
        if records <= self.records_done:
            return
        self._offsets.clear()
        while self._retired < self.space.total:
            task = self.space.task(self._retired)
            if self._records + task.records > records:
                break
            self._finish(task)
        if self._retired < self.space.total and records > self._records:
            self._commit(self._retired, records - self._records)
        self._next = max(self._next, self._retired)

    def touch(self, worker: int, now: float) -> None:
        """Extend the leases of a worker that made progress."""
        if (hand := self._hands.pop(worker, None)) is not None:
            hand.deadline = now + self.timeout_s
            self._hands[worker] = hand

    def complete_lease(self, lease_id: int, now: float) -> Lease | None:
        """Mark a task as done; None if the lease is unknown. A lease that expired is valid until
        the task is leased again."""
        lease = self._doing.get(lease_id)
        if lease is not None:
            self._forget(lease)
            self.touch(lease.worker, now)
        else:
            id = self._late.pop(lease_id, None)
            if id is None:
                return None
            del self._waiting[id]
            lease = Lease(lease_id, self.space.task(id), -1, self._offsets.get(id, 0), True)
        self._finish(lease.task)
        if self._ledger is not None:
            self._ledger.done(lease.worker, lease.task.id, lease.offset)
        return lease

    def release(
        self, lease_id: int, now: float, *, committed: int = 0, why: str = "released"
    ) -> Lease | None:
        """Return an unfinished task to the queue, with its first ``committed`` records done."""
        lease = self._doing.get(lease_id)
        if lease is None:
            return None
        self.touch(lease.worker, now)
        if committed:
            self._commit(lease.task.id, committed)
        self._take_back(lease, why)
        return lease

    def fail(self, lease_id: int, now: float, *, committed: int = 0) -> int:
        """Return a task to the queue after the user's code raised. Returns the number of failures
        of the task; 0 if the lease is unknown."""
        lease = self.release(lease_id, now, committed=committed, why="failed")
        return 0 if lease is None else self._failed(lease)

    def keep_only(self, worker: int, held: Iterable[int], now: float) -> None:
        """Release leases that a worker does not know of, because an answer was lost."""
        if (hand := self._hands.get(worker)) is not None:
            for lease_id in sorted(hand.leases.keys() - set(held)):
                self.release(lease_id, now, why="answer lost")

    def drop_worker(self, worker: int, why: str = "worker lost") -> None:
        """Return all tasks of a worker to the queue."""
        for lease in self.held_by(worker):
            self._take_back(lease, why)

    def held(self, worker: int, now: float) -> tuple[int, float, float]:
        """Return the number of leases of a worker, the seconds since it made progress on them, and
        the age of the oldest in seconds."""
        if (hand := self._hands.get(worker)) is None:
            return 0, 0.0, 0.0
        oldest = next(iter(hand.leases.values()))
        return len(hand.leases), max(0.0, now + self.timeout_s - hand.deadline), now - oldest.since

    def late(self, now: float) -> list[int]:
        """Return the workers whose leases expire by ``now`` unless they make progress."""
        hands = self._hands.items()
        return [worker for worker, _ in itertools.takewhile(lambda x: x[1].deadline <= now, hands)]

    def expire(self, now: float) -> list[tuple[Lease, int]]:
        """Return tasks of workers without progress to the queue. Returns the oldest lease of each
        of these workers, and the number of failures of its task."""
        expired = []
        for worker in self.late(now):
            lease = self.held_by(worker)[0]
            self.drop_worker(worker, "lease expired")
            expired.append((lease, self._failed(lease)))
        return expired

    def _failed(self, lease: Lease) -> int:
        count = self._failures[lease.task.id] = self._failures.get(lease.task.id, 0) + 1
        return count

    def void(self) -> None:
        """Return every leased task to the queue; late reports on the leases are ignored."""
        for worker in list(self._hands):
            self.drop_worker(worker, "model renewed")
        self._late.clear()
        self._waiting = dict.fromkeys(self._waiting, 0)

    def restore(self, progress: Watermarks) -> None:
        """Reset to the progress of a checkpoint; every lease is void."""
        self._clear(progress)
        if self._ledger is not None:
            self._ledger.restored(progress)

    def adopt(self, lease_id: int, task_id: int, worker: int, now: float) -> bool:
        """Adopt a lease that an earlier master granted and did not store. Returns whether it is
        valid: of two leases of a task the later one is, since the earlier one had expired."""
        if task_id >= self.space.total or self.is_done(task_id):
            return False
        if task_id in self._waiting:
            self._late.pop(self._waiting.pop(task_id), None)
        elif task_id >= self._next:
            # The tasks in between may have been leased as well.
            for id in range(self._next, task_id):
                self._return(id, 0)
            self._next = task_id + 1
        else:
            holder = next(x for x in self._doing.values() if x.task.id == task_id)
            if holder.id > lease_id:
                return False
            self._forget(holder)
        self._retried.add(task_id)
        offset = self._offsets.get(task_id, 0)
        self._hold(Lease(lease_id, self.space.task(task_id), worker, offset, True, now), now)
        return True

    def to_state(self) -> dict[str, Any]:
        """Return the state for a restarted master, as JSON values. Its size grows with the number
        of open tasks before ``next``, not with all tasks."""
        leases = self._doing.values()
        return {
            "retired": self._retired,
            "next": self._next,
            "back": sorted(self._waiting),
            "leases": [[x.id, x.task.id, x.worker, x.offset, x.retried] for x in leases],
            "offsets": sorted(self._offsets.items()),
            "failures": sorted(self._failures.items()),
            "first": self._first.to_state([*self._waiting, *(x.task.id for x in leases)]),
            "suspects": self.suspects.to_state(),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """Restore what :meth:`to_state` returned; every worker counts as having made progress."""
        self._clear(Watermarks(state["retired"]))
        self._next = state["next"]
        self._offsets = dict(map(tuple, state["offsets"]))
        self._failures = dict(map(tuple, state["failures"]))
        self._first.from_state(state["first"])
        self.suspects.from_state(state["suspects"])
        for id, task, worker, offset, retried in state["leases"]:
            self._hold(Lease(id, self.space.task(task), worker, offset, retried, now), now)
            if retried:
                self._retried.add(task)
        for task in state["back"]:
            self._return(task, 0)
        open = [*state["back"], *(lease.task.id for lease in self._doing.values())]
        self._finish_others(self._next, open)

    def _forget(self, lease: Lease) -> None:
        del self._doing[lease.id]
        hand = self._hands[lease.worker]
        hand.drop(lease, self._open_steps(lease))
        self._moved.add(lease.worker)
        if not hand.leases:
            del self._hands[lease.worker]

    def _take_back(self, lease: Lease, why: str) -> None:
        """Return a leased task to the queue."""
        self._forget(lease)
        self._return(lease.task.id, lease.id)
        if self._ledger is not None:
            committed = self._offsets.get(lease.task.id, 0)
            self._ledger.add("back", lease.worker, lease.task.id, lease.offset, committed, why)

    def _return(self, id: int, lease_id: int) -> None:
        heapq.heappush(self._back, id)
        self._waiting[id] = lease_id
        self._retried.add(id)
        if lease_id:
            self._late[lease_id] = id

    def _finish(self, task: Task) -> None:
        self._failures.pop(task.id, None)
        self.suspects.done(task.id)
        self._retried.discard(task.id)
        super()._finish(task)


class Unreported:
    """Progress within leased tasks, as heartbeats report it. The sum is computed ten times a
    second, so only workers whose counts changed are summed anew."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        self._of: dict[int, tuple[int, int]] = {}
        self._sum: tuple[int, ...] = (0, 0)

    def done(self, members: Membership) -> tuple[int, int]:
        """Return (records, minibatches) of all workers."""
        for worker in members.take_moved() | self._queue.take_moved():
            now, before = self._done_by(members.get(worker)), self._of.pop(worker, (0, 0))
            if now != (0, 0):
                self._of[worker] = now
            self._sum = tuple(
                all + new - old for all, new, old in zip(self._sum, now, before, strict=True)
            )
        records, steps = self._sum
        return records, steps

    def _done_by(self, member: Member | None) -> tuple[int, int]:
        if member is None:
            return 0, 0
        records = member.heartbeat.records - member.reported_records
        steps = member.heartbeat.steps - member.reported_steps
        if records <= 0 and steps <= 0:
            return 0, 0
        # A heartbeat may include work that a report counted since, so the result is capped by the
        # open work.
        open_records, open_steps = self._queue.open_steps(member.id)
        return min(max(0, records), open_records), min(max(0, steps), open_steps)

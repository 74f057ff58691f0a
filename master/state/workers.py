"""What workers tell the job, and what it answers them. Pure."""

from __future__ import annotations

from master.state.actions import CheckpointFailed
from master.state.job import Job
from master.state.membership import Member
from master.state.ring import Formed
from master.state.scripts import ScriptJob
from master.state.tasks import Lease, Pass
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class Workers:
    """The RPCs of workers, as events of the job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def register(self, request: pb.RegisterRequest, now: float) -> pb.RegisterResponse:
        """A worker is there.

        Raises:
            UsageError: it is none of this job's, or was given up.
        """
        worker = request.worker_id
        if worker < 0 and isinstance(self._job, ScriptJob):
            worker = self._job.register(request, now)
        known = self._job.fleet.registered(worker, now)
        if not known or not self._job.members.register(worker, request.pid, request.host, now):
            raise UsageError(f"worker {worker}: not one that this job waits for")
        return pb.RegisterResponse(
            config_json=self._job.config.to_json(),
            worker_id=worker,
            ring=self._job.lockstep.ring.number,
        )

    def heartbeat(self, request: pb.HeartbeatRequest, now: float) -> pb.HeartbeatResponse:
        """A worker lives."""
        member = self._job.members.get(request.worker_id)
        if member is None:
            # One whose script goes on after its training is none of our business any more.
            left = request.worker_id in self._job.lockstep.ring.left
            if left and isinstance(self._job, ScriptJob):
                self._job.last_words(request)
            return pb.HeartbeatResponse(known=left, drain=not left)
        steps_before = member.steps
        moved = self._job.members.heartbeat(
            request.worker_id,
            now,
            phase=request.phase,
            steps=request.steps,
            records=request.records,
            loss=request.loss,
        )
        self._job.damaged += request.damaged - member.damaged
        member.version, member.ring, member.damaged = request.version, request.ring, request.damaged
        member.data_pass = request.pass_index
        member.position, member.pass_records = request.position, request.pass_records
        member.epoch, member.epochs = request.epoch, request.epochs
        member.records_before = request.records_before
        member.records_to_come = request.records_to_come
        member.logged.update(request.logged)
        if self._job.lockstep.stepped(member):
            size = self._job.config.data.batch_size
            self._job.left_out.told(request.left_out, member.position, size)
        if moved:
            self._job.work.touch(request.worker_id, now)
            if request.steps > steps_before:
                self._job.fleet.trained(request.worker_id)
        return pb.HeartbeatResponse(
            known=True,
            drain=member.draining or self._job.outcome is not None,
            stopping=self._job.stopping is not None,
            incarnation=self._job.fleet.incarnation,
            broken_ring=self._job.lockstep.ring.broken(now),
            stale_ring=self._job.lockstep.ring.stale(),
        )

    def join_ring(self, request: pb.JoinRingRequest, now: float) -> pb.JoinRingResponse | None:
        """A worker asks to join the next ring; None while the ring is not formed."""
        member = self._for_next_ring(request.worker_id, now, over=False)
        if member is None:
            return pb.JoinRingResponse(leave=True)
        formed = self._job.lockstep.join(member, request, now)
        return None if formed is None else pb.JoinRingResponse(ring=_message(formed))

    def stand_by(self, request: pb.StandByRequest, now: float) -> pb.StandByResponse | None:
        """A worker whose script is over keeps its model; None while nobody needs the model."""
        over = self._job.lockstep.ring.finished
        member = self._for_next_ring(request.worker_id, now, over=over)
        if member is None:
            return pb.StandByResponse(leave=True)
        formed = self._job.lockstep.stand_by(member, request, now)
        return None if formed is None else pb.StandByResponse(ring=_message(formed))

    def _for_next_ring(self, worker: int, now: float, *, over: bool) -> Member | None:
        """The worker, if a ring may still need the worker; else the worker has left with this.

        Args:
            over: the scripts of all workers are over, this one's too.
        """
        job, member = self._job, self._job.members.get(worker)
        # Others may have died since the worker was asked to leave: a worker that alone has the
        # model gives the model to those that wait, before it leaves.
        if member is not None and member.draining and job.lockstep.may_drain(worker):
            job.left_ring(member, now, finished=False)
            return None
        if member is None or job.outcome is not None:
            return None
        if over or not job.lockstep.ring.wanted(worker):
            # The worker ends now, and its silence is no loss.
            job.left_ring(member, now, finished=over)
            return None
        return member

    def leave_ring(self, request: pb.LeaveRingRequest, now: float) -> pb.LeaveRingResponse:
        """A worker will join no other ring."""
        member = self._job.members.get(request.worker_id)
        if member is not None:
            by_itself = not member.draining
            self._job.left_ring(
                member, now, finished=by_itself and request.finished, ends=by_itself
            )
        return pb.LeaveRingResponse()

    def commit_checkpoint(
        self, request: pb.CommitCheckpointRequest, now: float
    ) -> pb.CommitCheckpointResponse:
        """A member asks whether a checkpoint of its ring counts, or says that it is written."""
        job, ring = self._job, self._job.lockstep.ring
        newest = request.ring == ring.number and request.worker_id in ring.living()
        accepted = newest and job.outcome is None
        if accepted and request.written:
            job.checkpoint_written(request.directory, now)
        return pb.CommitCheckpointResponse(accepted=accepted)

    def lease(self, request: pb.LeaseRequest, now: float) -> pb.LeaseResponse | None:
        """Tasks for a worker; None if there are none now but may be later."""
        member = self._job.members.get(request.worker_id)
        if member is None:
            return self._answer(pb.LeaseResponse.DRAIN)
        script = self._job if isinstance(self._job, ScriptJob) else None
        if script is not None and script.settled:
            return self._answer(pb.LeaseResponse.FINISHED)
        if self._job.outcome is not None:
            # A script that hears of the end goes on with what it has trained: is there such?
            over = pb.LeaseResponse.FINISHED if script is None else pb.LeaseResponse.DRAIN
            return self._answer(over)
        if self._job.stopping is not None or request.leaving:
            return self._leaving(request, now)
        cluster = self._job.cluster()
        if cluster is None or not self._job.work.ready:
            return None
        if request.incarnation != cluster.incarnation:
            answer = self._answer(pb.LeaseResponse.CLUSTER_CHANGED)
            answer.cluster.CopyFrom(cluster)
            return answer
        if not self._job.lockstep.may_lease(member):
            return None
        leases = self._job.work.lease(
            request.worker_id,
            request.want,
            request.held,
            now,
            draining=member.draining,
            snapshots=self._job.lockstep.may_snapshot(member),
        )
        if member.draining:
            return self._answer(pb.LeaseResponse.DRAIN)
        if not leases:
            return None
        self._job.leased(now)
        answer = self._answer(pb.LeaseResponse.LEASED)
        answer.leases.extend(leases)
        return answer

    def _leaving(self, request: pb.LeaseRequest, now: float) -> pb.LeaseResponse | None:
        """A worker that goes writes the last checkpoint, if nobody else has the model."""
        job = self._job
        member = job.members.get(request.worker_id)
        holds = job.fleet.strategy in ("local", "allreduce") and not job.checkpoints.complete
        has_model = member is not None and job.lockstep.may_lease(member)
        if job.stopping is None or not request.leaving or not holds or not has_model:
            return self._answer(pb.LeaseResponse.DRAIN)
        # What it held it has given back.
        job.work.drop_worker(request.worker_id)
        leases = job.work.lease_snapshot(request.worker_id, now)
        if not leases:
            return None
        job.checkpoints.promote()
        answer = self._answer(pb.LeaseResponse.LEASED)
        answer.leases.extend(leases)
        return answer

    def waiting(self) -> pb.LeaseResponse:
        """The answer when there was nothing to lease for a while."""
        return self._answer(pb.LeaseResponse.WAIT)

    def _answer(self, next: pb.LeaseResponse.Next) -> pb.LeaseResponse:
        return pb.LeaseResponse(next=next, retired_before=self._job.work.retired_before)

    def complete_task(self, request: pb.CompleteTaskRequest, now: float) -> pb.CompleteTaskResponse:
        """A worker has done a task."""
        job, worker = self._job, request.worker_id
        if job.outcome is not None:
            return pb.CompleteTaskResponse(known=False)
        for each in job.work.passes():
            lease = each.queue.complete_lease(request.lease_id, now)
            if lease is not None:
                try:
                    self._take(each, lease, request, now)
                except UsageError as error:
                    job.fail(str(error), now, usage=True)
                self._count(each, worker, request.counts, now)
                job.fleet.trained(worker)
                return pb.CompleteTaskResponse(known=True)
        return pb.CompleteTaskResponse(known=False)

    def _take(self, each: Pass, lease: Lease, request: pb.CompleteTaskRequest, now: float) -> None:
        """Takes the result of a task that is not training."""
        job, evaluations = self._job, self._job.work.evaluations
        if each.kind == pb.TASK_EVALUATE and evaluations is not None:
            evaluations.evaluated(lease.task.id, request.metrics.states)
        elif each.kind == pb.TASK_SUMMARIZE and evaluations is not None:
            job.evaluated(evaluations.summarized(request.values.values), now)
        elif each.kind == pb.TASK_SNAPSHOT:
            base, to = job.work.end_snapshot(), each.directory
            job.checkpoints.snapshot_written(base, request.snapshot, to, job.contents())

    def release_task(self, request: pb.ReleaseTaskRequest, now: float) -> pb.ReleaseTaskResponse:
        """A worker returns a task that it has not finished."""
        if self._job.outcome is None:
            for each in self._job.work.passes():
                if each.queue.release(request.lease_id, now) is not None:
                    self._count(each, request.worker_id, pb.TaskCounts(), now)
        return pb.ReleaseTaskResponse()

    def fail_task(self, request: pb.FailTaskRequest, now: float) -> pb.FailTaskResponse:
        """The user's code raised."""
        if self._job.outcome is None:
            for each in self._job.work.passes():
                failed = each.queue.fail(request.lease_id, now, committed=request.counts.records)
                if failed is not None:
                    self._failed(each, failed[1], request, now)
                    self._count(each, request.worker_id, request.counts, now)
        return pb.FailTaskResponse()

    def _failed(self, each: Pass, count: int, request: pb.FailTaskRequest, now: float) -> None:
        job = self._job
        if each.kind == pb.TASK_SNAPSHOT and not request.fatal:
            job.work.end_snapshot()
            job.apply(CheckpointFailed(request.error, job.fleet.incarnation), now)
            return
        limit = job.config.cluster.max_task_failures
        if request.fatal or count >= limit:
            job.fail(request.error, now, traceback=request.traceback)
        else:
            job.tell(
                "warning",
                f"worker-{request.worker_id}: {request.error}; failure "
                f"{count} of {limit} of this task, trying it again",
                now,
                request.traceback,
            )

    def _count(self, each: Pass, worker: int, counts: pb.TaskCounts, now: float) -> None:
        self._job.damaged += counts.damaged
        own = each is self._job.work.main
        if own:
            self._job.left_out.reported(
                records=counts.records, steps=counts.steps, nan_steps=counts.nan_steps
            )
        self._job.members.reported(
            worker,
            now,
            steps=counts.steps if own else 0,
            records=counts.records if own else 0,
        )


def _message(formed: Formed) -> pb.Ring:
    return pb.Ring(
        number=formed.number,
        workers=formed.workers,
        store=formed.store,
        source=formed.source,
        heal=formed.heal,
        fresh=formed.fresh,
        restored_from=formed.restored_from,
        values_only=formed.values_only,
    )

"""Calls of workers, documented in ``torch_edl/wire``. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from master.state.job.job import ManagedJob
from master.state.membership import Member
from master.state.work.progress import is_at_next
from master.state.work.task_scheduler import TaskEvent
from master.state.work.tasks import TaskQueue
from torch_edl.errors import UsageError
from torch_edl.events import (
    LossNotFinite,
    WorkerAskedToLeave,
    WorkerLeft,
    WorkerPreempted,
    WorkerWaited,
)
from torch_edl.wire import master_pb2 as pb

# Seconds after its grace period at which a leaving worker is terminated.
_OVERTIME_S = 2.0

_TaskEnd = TypeVar("_TaskEnd", pb.CompleteTaskRequest, pb.ReleaseTaskRequest, pb.FailTaskRequest)
_Ask = Callable[[int, int, int, str, float], pb.Ring | None]


# ---- workers ----


def register(
    job: ManagedJob, request: pb.RegisterRequest, now: float
) -> pb.RegisterResponse | None:
    """Add a worker to the job; None while a script's process waits for another training.

    Raises:
        UsageError: the worker does not belong to the job, or was declared lost.
    """
    current, lifecycle = job.trainings.number, job.lifecycle
    if request.training > 1 and lifecycle.stopping is not None:
        return pb.RegisterResponse(leave=True)
    if request.training > current and not _goes_on(job, request, now):
        return None
    if 0 < request.training < current:
        if lifecycle.ending:
            return pb.RegisterResponse(leave=True)
        if len(job.members) or job.ring.awaits_exits:
            trained = job.trainings.checkpoint_of(request.training)
            known = trained and trained != request.missing
            results = job.meetings.results_of(request.training)
            return pb.RegisterResponse(trained=trained, results=results) if known else None
        if job.ring.finished:
            return pb.RegisterResponse(leave=True)
        job.begin_training(request.training, now)
    worker, events = job.workforce.register(request)
    job.apply_all(events, now)
    job.trainings.awaited = False
    known = job.fleet.registered(worker)
    if not known or not job.members.register(worker, request.pid, now):
        raise UsageError(f"worker {worker}: not a worker that this job waits for")
    config, ring = job.preparation.config_json, job.ring.number
    return pb.RegisterResponse(
        config_json=config,
        worker_id=worker,
        ring=ring,
        models=str(job.checkpoints.temporary) if request.training else "",
    )


def _goes_on(job: ManagedJob, request: pb.RegisterRequest, now: float) -> bool:
    """Begin the next training of a script for a process that registers for it. Returns False while
    another process is in the current one."""
    number = job.trainings.number
    if request.training != number + 1:
        raise UsageError(
            f"training {request.training} of a script that is in training {number}: all processes "
            "must call torch_edl.init() the same number of times"
        )
    if not job.workforce.awaits_outcome:
        raise UsageError(
            "torch_edl.init(): a second training under torchrun; use torch-edl run, or start "
            "torchrun once for each training"
        )
    before = job.script_workforce().before(request)
    member = job.members.get(before)
    if member is not None:
        _leave(job, member, now, finished=True)
    job.ring.exited(before, well=True)
    if job.ring.occupied:
        return False
    # On servers, every process reaches the end of a training, even if the process joined late.
    if job.fleet.strategy == "ps" and (len(job.members) or not job.complete_training()):
        return False
    for late in list(job.members):  # processes that did not join in time
        _leave(job, late, now, finished=False)
    job.begin_training(request.training, now)
    return True


def report_model(
    job: ManagedJob, request: pb.ReportModelRequest, now: float
) -> pb.ReportModelResponse:
    fleet, preparation = job.fleet, job.preparation
    events = preparation.model_reported(request, fleet.workers_wanted, strategy=fleet.strategy)
    job.prepare(events, now)
    return pb.ReportModelResponse()


def report_failure(
    job: ManagedJob, request: pb.ReportFailureRequest, now: float
) -> pb.ReportFailureResponse:
    usage = not request.running or (request.untried and job.is_untried)
    job.lifecycle.fail(request.error, now, traceback=request.traceback, usage=usage)
    return pb.ReportFailureResponse()


def wait_until_ready(
    job: ManagedJob, request: pb.WaitUntilReadyRequest, now: float, *, cores: int = 1
) -> pb.WaitUntilReadyResponse | None:
    """Return what the worker begins with; ``cores`` are divided among the workers."""
    if job.lifecycle.outcome is not None:
        return pb.WaitUntilReadyResponse(leave=True)
    fitting = job.tasks.fitting
    # Scripts call fit_preprocessing instead.
    if job.config.kind != "script" and job.preparation.complete and not fitting.ready:
        return pb.WaitUntilReadyResponse(fit=True) if fitting.todo else None
    cluster = job.fleet.cluster()
    if cluster is None or not job.preparation.complete:
        return None
    job.fleet.ready(request.worker_id)
    shards = job.tasks.shards if job.tasks.lockstep else ()
    threads = max(1, cores // max(1, job.fleet.workers_wanted))
    start = pb.Start(
        strategy=job.fleet.strategy,
        reason=job.reason,
        cluster=cluster,
        torch_threads=job.config.cluster.worker_threads or threads,
        shards=[pb.SourceShard(**dataclasses.asdict(shard)) for shard in shards],
        preprocessing=fitting.content,
        trial=job.tasks.trial(),
    )
    return pb.WaitUntilReadyResponse(start=start)


def heartbeat(job: ManagedJob, request: pb.HeartbeatRequest, now: float) -> pb.HeartbeatResponse:
    worker, ring = request.worker_id, job.ring
    member = job.members.get(worker)
    if member is None:
        # A worker that left the ring may still run its script: it is neither lost nor unknown.
        left = worker in ring.left
        if left and ring.includes(worker):
            job.workload.heard(request, counts=job.workload.members_save)
            job.members.last_words(loss=request.loss, logged=request.logged)
            _warn_of_loss(job, request, now)
        return pb.HeartbeatResponse(known=left, drain=not left)
    if request.training not in (0, job.trainings.number):
        return pb.HeartbeatResponse(known=True)  # late: the worker has left that training
    _warn_of_loss(job, request, now)
    before = member.heartbeat
    job.damaged += request.damaged - before.damaged
    stepped = request.steps > before.steps
    stood = request.standstill if request.HasField("standstill") else None
    job.lifecycle.outages.heard(worker, now, stepped=stepped, stood=stood)
    waited_s = member.waits_s(now)
    if job.members.heartbeat(member, request, now):
        job.tasks.touch(worker, now)
        if stepped:
            job.fleet.trained(worker)
    if waited_s and not member.waits_s(now):
        waited = WorkerWaited(process=f"worker-{worker}", seconds=round(waited_s, 1))
        job.lifecycle.note(waited, now)
    if request.leaving and not member.draining:
        member.draining, member.asked_at = True, now
        by = now + job.config.cluster.grace_s + _OVERTIME_S
        job.fleet.leaves(worker, now, by=by, preempted=bool(request.notice))
        name = f"worker-{worker}"
        if request.notice:
            job.lifecycle.note(WorkerPreempted(process=name, notice=request.notice), now)
        elif not job.lifecycle.ending:  # otherwise the master asked it
            job.lifecycle.note(WorkerAskedToLeave(process=name), now)
    newest = request.ring == ring.number
    if newest and ring.includes(worker):
        job.spans.heard(request, now)
    if ring.includes(worker) and job.workload.heard(request, counts=newest):
        size = job.config.data.batch_size
        left_out = job.milestones.left_out
        left_out.reached(request.left_out, request.position, size)
        left_out.updates = max(left_out.updates, request.nan_updates)
    return pb.HeartbeatResponse(
        known=True,
        drain=member.draining or job.lifecycle.outcome is not None,
        stopping=job.lifecycle.stopping is not None,
        broken_ring=ring.broken(now),
        stale_ring=ring.stale(),
        newest_server=job.fleet.servers.newest,
        give_back=job.tasks.idle.is_other(worker, now) and job.tasks.held(worker, now)[0] > 1,
        tell_machine=("worker", worker) in job.verdicts,
        stacks_number=member.stacks_asked,
        epochs_open=job.tasks.epochs_open,
        epoch_ends=[
            pb.MetricValues(values=figures)
            for figures in job.milestones.epoch_ends[request.epochs_heard :]
        ],
    )


def _warn_of_loss(job: ManagedJob, request: pb.HeartbeatRequest, now: float) -> None:
    """Log the first non-finite loss of a script. Model files handle it with --on-nan."""
    loss = request.logged.get("loss", 0.0)
    if job.members.loss_warned or math.isfinite(loss):
        return
    job.members.loss_warned = True
    name = f"worker-{request.worker_id}"
    job.lifecycle.note(LossNotFinite(process=name, loss=str(loss), steps=request.steps), now)


# ---- tasks ----


def lease(job: ManagedJob, request: pb.LeaseRequest, now: float) -> pb.LeaseResponse | None:
    member = job.members.get(request.worker_id)
    if member is None:
        return _answer(job, pb.LeaseResponse.DRAIN)
    if job.milestones.settled:
        over = pb.LeaseResponse.PASS_OVER if request.epochs else pb.LeaseResponse.FINISHED
        return _answer(job, over)
    if job.lifecycle.ending:
        return _answer(job, pb.LeaseResponse.DRAIN)
    if request.fit:
        leases = job.tasks.grant(request, now, draining=member.draining)
        if leases:
            job.lifecycle.began(now)
        next = pb.LeaseResponse.DRAIN if member.draining else pb.LeaseResponse.LEASED
        return _answer(job, next, leases)
    if not job.tasks.ready:
        return None
    if request.incarnation != job.fleet.model.incarnation:
        cluster = job.fleet.cluster()
        if cluster is None:
            return None
        answer = _answer(job, pb.LeaseResponse.CLUSTER_CHANGED)
        answer.cluster.CopyFrom(cluster)
        return answer
    if not _has_model(job, member):
        return None
    if request.epochs and is_at_next(job.tasks.main, request.epochs):
        return _answer(job, pb.LeaseResponse.PASS_OVER)
    for lease_id, task in zip(request.held, request.tasks, strict=False):
        _recognize(job, request.worker_id, lease_id, task, now)
    leases = job.tasks.grant(
        request,
        now,
        workers=len(job.members),
        draining=member.draining,
        snapshots=_may_snapshot(job, member),
    )
    if member.draining:
        return _answer(job, pb.LeaseResponse.DRAIN)
    if leases:
        job.lifecycle.began(now)
        job.tasks.idle.works(request.worker_id)
    elif request.want:
        job.tasks.idle.waits(request.worker_id, now)
        return None
    return _answer(job, pb.LeaseResponse.LEASED, leases)


def _has_model(job: ManagedJob, member: Member) -> bool:
    """Return whether a worker has a model to evaluate or to save."""
    return not job.tasks.lockstep or job.ring.includes(member.id)


def _may_snapshot(job: ManagedJob, member: Member) -> bool:
    """Return whether the model of a worker has all steps that the snapshot must contain."""
    main = job.tasks.main
    if not job.tasks.lockstep or main is None or not job.tasks.trained:
        return True
    # The last step may have completed on some members only.
    at_end = member.heartbeat.position >= main.records_done
    return at_end and member.heartbeat.ring == job.ring.number


def lease_snapshot(
    job: ManagedJob, request: pb.LeaseSnapshotRequest, now: float
) -> pb.LeaseSnapshotResponse | None:
    """Lease the final snapshot to a leaving worker, if no other worker writes it."""
    member = job.members.get(request.worker_id)
    stopping = job.lifecycle.stopping is not None and job.lifecycle.outcome is None
    holds = job.fleet.strategy in ("local", "allreduce") and not job.checkpoints.complete
    if member is None or job.milestones.settled or not stopping or not holds:
        return pb.LeaseSnapshotResponse(leave=True)
    if not _has_model(job, member):
        return pb.LeaseSnapshotResponse(leave=True)
    # The worker has released its leases.
    job.tasks.drop_worker(member.id)
    leases = job.tasks.lease_snapshot(member.id, now)
    if not leases:
        return None
    job.checkpoints.promote()
    return pb.LeaseSnapshotResponse(lease=leases[0])


def nothing_to_lease(job: ManagedJob) -> pb.LeaseResponse:
    """Return the answer to a call that found nothing to lease for a while."""
    return _answer(job, pb.LeaseResponse.WAIT)


def _answer(
    job: ManagedJob, next: pb.LeaseResponse.Next, leases: list[pb.LeaseMessage] | None = None
) -> pb.LeaseResponse:
    retired = job.tasks.retired_before
    return pb.LeaseResponse(next=next, retired_before=retired, leases=leases or ())


def begin_task(job: ManagedJob, request: pb.BeginTaskRequest, now: float) -> pb.BeginTaskResponse:
    _recognize(job, request.worker_id, request.lease_id, request.task, now)
    job.tasks.begun(request, now)
    return pb.BeginTaskResponse()


def complete_task(
    job: ManagedJob, request: pb.CompleteTaskRequest, now: float
) -> pb.CompleteTaskResponse:
    known = _end_task(job, request, now, job.tasks.complete)
    if known:
        job.fleet.trained(request.worker_id)
        if not job.config.trains:  # heartbeats have no steps of an evaluation
            job.lifecycle.outages.heard(request.worker_id, now, stepped=True)
    return pb.CompleteTaskResponse(known=known)


def release_task(
    job: ManagedJob, request: pb.ReleaseTaskRequest, now: float
) -> pb.ReleaseTaskResponse:
    _end_task(job, request, now, job.tasks.release)
    return pb.ReleaseTaskResponse()


def fail_task(job: ManagedJob, request: pb.FailTaskRequest, now: float) -> pb.FailTaskResponse:
    request.untried = request.untried and job.is_untried
    _end_task(job, request, now, job.tasks.fail)
    return pb.FailTaskResponse(over=job.lifecycle.outcome is not None)


def _end_task(
    job: ManagedJob,
    request: _TaskEnd,
    now: float,
    end: Callable[[_TaskEnd, float], tuple[TaskQueue, TaskEvent | None] | None],
) -> bool:
    """End a lease by ``end`` and count its records. Returns whether the lease was known."""
    _recognize(job, request.worker_id, request.lease_id, request.task, now)
    found = None if job.lifecycle.outcome is not None else end(request, now)
    if found is None:
        return False
    queue, event = found
    if event is not None:
        job.apply(event, now)
    counts = request.counts
    job.damaged += counts.damaged
    trained = counts if queue is job.tasks.main else pb.TaskCounts()
    job.milestones.left_out.reported(trained)
    job.members.reported(request.worker_id, now, steps=trained.steps, records=trained.records)
    return True


def _recognize(
    job: ManagedJob, worker: int, lease_id: int, task: pb.LeasedTask, now: float
) -> None:
    if worker in job.members:
        job.tasks.recognize(worker, lease_id, task, job.fleet.model.incarnation, now)


# ---- the ring ----


def join_ring(
    job: ManagedJob, request: pb.JoinRingRequest, now: float
) -> pb.JoinRingResponse | None:
    ask = partial(job.ring.ask, rank=request.rank)
    return _next_ring(job, request, now, ask, over=False)


def stand_by(job: ManagedJob, request: pb.StandByRequest, now: float) -> pb.JoinRingResponse | None:
    ring = job.ring
    return _next_ring(job, request, now, ring.stand_by, over=ring.finished)


def _next_ring(
    job: ManagedJob,
    request: pb.JoinRingRequest | pb.StandByRequest,
    now: float,
    ask: _Ask,
    *,
    over: bool,
) -> pb.JoinRingResponse | None:
    """Answer a worker that asks for the next ring, which none follows if all scripts are over."""
    ring, member = job.ring, job.members.get(request.worker_id)
    if member is None:
        return pb.JoinRingResponse(leave=True)
    # The last member with the model passes it on to waiting workers before it leaves.
    if member.draining and job.ring.may_drain(member.id, job.members.staying()):
        _leave(job, member, now, finished=False)
        return pb.JoinRingResponse(leave=True)
    if job.lifecycle.outcome is not None:
        return pb.JoinRingResponse(leave=True)
    if over or not ring.wanted(member.id):
        # The worker exits now and is not to be declared lost.
        _leave(job, member, now, finished=over)
        return pb.JoinRingResponse(leave=True)
    member.last_heartbeat = now
    formed = ask(member.id, request.ring, request.step, request.store, now)
    if formed is None and job.form_ring(now):
        formed = ring.current
    if formed is None or member.id not in formed.workers:
        return None
    return pb.JoinRingResponse(ring=formed)


def report_span(
    job: ManagedJob, request: pb.ReportSpanRequest, now: float
) -> pb.ReportSpanResponse:
    """Record the span of a member of the newest ring."""
    if request.ring == job.ring.number and request.worker_id in job.ring.living():
        job.spans.report(request, now)
    return pb.ReportSpanResponse(enough=not job.spans.watched)


def leave_ring(job: ManagedJob, request: pb.LeaveRingRequest, now: float) -> pb.LeaveRingResponse:
    member = job.members.get(request.worker_id)
    # The worker may take part in a later training when a repeated call arrives.
    if member is not None and request.training in (0, job.trainings.number):
        ends = not member.draining
        _leave(job, member, now, finished=ends and request.finished, ends=ends)
    return pb.LeaveRingResponse()


def _leave(
    job: ManagedJob, member: Member, now: float, *, finished: bool, ends: bool = False
) -> None:
    if job.workforce.leave_ring(member.id, now, finished=finished, ends=ends):
        job.members.remove(member.id)
        job.tasks.drop_worker(member.id)
        if not finished:
            job.lifecycle.note(WorkerLeft(process=f"worker-{member.id}"), now)


def report_checkpoint(
    job: ManagedJob, request: pb.ReportCheckpointRequest, now: float
) -> pb.ReportCheckpointResponse:
    """Record a checkpoint, of this or an earlier ring, if the worker is rank 0 of the newest ring.
    That of a former rank 0 is rejected: it may be older than the newest one, and removed."""
    worker, over = request.worker_id, job.lifecycle.outcome is not None
    leads = worker in job.members and job.ring.leads(worker)
    accepted = job.workload.members_save and leads and not over
    if accepted:
        job.apply_all(job.checkpoints.written_by_ring(request.directory), now)
    return pb.ReportCheckpointResponse(accepted=accepted)

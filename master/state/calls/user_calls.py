"""Calls of the user's commands. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from master.state.job.job import ManagedJob
from master.state.workforce.processes import EXITED, ServerProcess, WorkerProcess
from torch_edl.config.job import check_servers
from torch_edl.errors import UsageError
from torch_edl.events import JobScaled
from torch_edl.wire import master_pb2 as pb

_NO_LOAD, _NOTHING_TOLD = pb.ServerHeartbeatRequest(), pb.HeartbeatRequest()

LogPath = Callable[[str, int], str]


def describe(
    job: ManagedJob,
    *,
    asked: pb.GetStatusRequest,
    now: float,
    master: pb.ProcessStatus,
    log_path: LogPath,
) -> pb.GetStatusResponse:
    """Return the status of a job; ``log_path`` maps role and id of a process to its log."""
    lifecycle = job.lifecycle
    records, steps = job.done()
    wall_s = lifecycle.wall_s(now)
    loss = job.members.loss()
    status = pb.GetStatusResponse(
        job=job.config.name,
        kind=job.config.kind,
        strategy=job.fleet.strategy,
        reason=job.reason,
        state=job.state,
        records=pb.RecordCounts(done=records),
        tasks=pb.TaskStates(),
        steps=steps,
        loss=loss,
        events=lifecycle.log.page(asked.events_after, shown_only=asked.shown_only),
        last_event=lifecycle.log.count,
        damaged=job.damaged,
        nan_steps=job.milestones.left_out.nan_steps + job.milestones.left_out.updates,
        wall_s=round(wall_s, 3),
        workers_wanted=job.fleet.workers_wanted,
        servers_wanted=job.fleet.servers.wanted if job.fleet.strategy == "ps" else 0,
        logged=job.members.logged(),
        rolled_back=pb.Rollbacks(times=lifecycle.rollbacks, records=lifecycle.records_rolled_back),
        updates_lost=lifecycle.updates_lost,
    )
    for (kind, level), count in sorted(lifecycle.log.counts.items()):
        status.events_count.add(kind=kind, level=level, count=count)
    lifecycle.describe_outages(status)
    outcome = lifecycle.outcome
    if outcome is not None and lifecycle.over:
        status.error = outcome.error
        status.traceback = outcome.traceback
        status.usage_error = outcome.usage_error
    finished = outcome is not None and outcome.state == "finished"
    job.workload.describe(status, finished=finished)
    if not status.epochs:
        status.ClearField("epochs")
    before = job.trainings.before
    status.nan_steps += before.nan_steps
    if status.records.total:
        status.records.total += before.records + before.early
    if finished:
        status.records_early += before.early
    records_per_s, steps_per_s = lifecycle.rates.per_second()
    status.rates["records_per_s"] = records_per_s
    status.rates["steps_per_s"] = steps_per_s
    status.rates["mean_records_per_s"] = (
        (records - job.workload.records_before) / wall_s if wall_s > 0 else 0.0
    )
    status.checkpoint = job.checkpoints.shown
    job.checkpoints.best.describe(status, is_temporary=not job.config.checkpoint.dir)
    if job.tasks.evaluations is not None:
        for result in job.tasks.evaluations.results:
            status.evaluations.add(steps=result.steps, metrics=dict(result.metrics))
    status.processes.append(master)
    replicas = job.config.durability.mode == "replica"
    for process in job.fleet:
        server = process if isinstance(process, ServerProcess) else None
        problem = process.waits or (server.problem if server else "")
        log = log_path(process.role, process.id)
        if job.config.launch is not None and not job.fleet.starts.in_pods:
            log = process.log or log  # on the machine of the worker
        elif not job.fleet.starts_workers and isinstance(process, WorkerProcess):
            log = ""  # torchrun has it
        member = job.members.get(process.id) if process.role == "worker" else None
        held = (0, 0.0, 0.0) if member is None else job.tasks.held(process.id, now)
        load = job.fleet.servers.load(server) if server else _NO_LOAD
        told = member.heartbeat if member is not None else _NOTHING_TOLD
        used = load.usage if load.HasField("usage") else member.usage if member else None
        verdict = job.verdicts.get((process.role, process.id))
        status.processes.add(
            role=process.kind,
            id=process.id,
            pid=process.pid,
            node=process.node,
            state=process.state,
            address=server.address if server else "",
            exit=process.exit,
            died=process.died,
            problem="" if process.state == EXITED else problem,
            kept=server is not None and job.fleet.servers.is_kept(server),
            expendable=replicas and server is not None and job.fleet.servers.is_expendable(server),
            log=log,
            phase=told.phase,
            records=told.records,
            leases=held[0],
            idle_s=round(held[1], 2),
            lease_s=round(held[2], 2),
            waits_s=0.0 if member is None else round(member.waits_s(now), 2),
            seconds=told.seconds,
            busy_s=told.busy_s,
            slow=verdict.slow if verdict is not None else 0.0,
            machine=load.machine if server else told.machine,
            usage=used if process.state != EXITED else None,
            updates=load.version,
            rows=load.rows,
            bytes=load.bytes,
            counts=load.counts if load.HasField("counts") else None,
        )
    return status


def scale(job: ManagedJob, request: pb.ScaleRequest, now: float) -> pb.ScaleResponse:
    """Set the number of workers, of servers, or both. If one is not possible, UsageError is raised
    and neither changes."""
    scaled = JobScaled()
    if job.lifecycle.ending:
        raise UsageError("the job is over: there is nothing to scale")
    if request.servers:
        check_servers(job.config, request.servers, strategy=job.fleet.strategy)
    if request.max_workers or not request.servers:
        before = job.fleet.workers_wanted
        job.workforce.scale(request)
        scaled = replace(scaled, workers_before=before, workers=request.max_workers)
    if request.servers:
        before = job.fleet.servers.wanted
        job.fleet.servers.want(request.servers)
        scaled = replace(scaled, servers_before=before, servers=request.servers)
    job.lifecycle.note(scaled, now)
    return pb.ScaleResponse(text=scaled.text)


def stop(job: ManagedJob, request: pb.StopRequest, now: float) -> pb.StopResponse:
    job.stop(request.reason or "asked to stop", now, at_once=request.at_once)
    return pb.StopResponse()


def get_stacks(job: ManagedJob, request: pb.GetStacksRequest, now: float) -> pb.GetStacksResponse:
    """Request the stacks of all workers' threads. The answer has those received so far."""
    for member in job.members:
        if member.stacks_asked < request.number:
            member.ask_stacks(request.number)
    return pb.GetStacksResponse(
        workers=[
            pb.WorkerStacks(
                worker_id=member.id,
                pid=member.pid,
                told=member.stacks_told >= request.number,
                stacks=member.stacks,
            )
            for member in job.members
        ]
    )


def add_events(job: ManagedJob, request: pb.AddEventsRequest, now: float) -> pb.AddEventsResponse:
    job.lifecycle.log.add_from(request.source, request.events)
    return pb.AddEventsResponse()

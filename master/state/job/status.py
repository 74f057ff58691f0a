"""The answer to GetStatus. Pure."""

from __future__ import annotations

from collections.abc import Callable

from master.state.job.job import Job
from master.state.workforce.processes import EXITED, Server, Worker
from torch_edl.wire import master_pb2 as pb

LogPath = Callable[[str, int], str]


def describe(
    job: Job, *, events_after: int, now: float, master: pb.ProcessStatus, log_path: LogPath
) -> pb.GetStatusResponse:
    """Return the status of a job.

    Args:
        log_path: maps role and id of a process that this master started to its log.
    """
    lifecycle = job.lifecycle
    records, steps = job.done()
    wall_s = lifecycle.wall_s(now)
    loss = job.members.loss()
    status = pb.GetStatusResponse(
        job=job.config.name,
        kind=job.config.kind,
        strategy=job.fleet.strategy,
        strategy_reason=job.reason,
        state=job.state,
        records_done=records,
        steps=steps,
        loss=loss,
        events=lifecycle.log.after(events_after),
        damaged=job.damaged,
        nan_steps=job.milestones.left_out.nan_steps,
        wall_s=wall_s,
        workers_wanted=job.fleet.workers_wanted,
        servers_wanted=job.fleet.servers.wanted if job.fleet.strategy == "ps" else 0,
        logged=job.members.logged(),
        rollbacks=lifecycle.rollbacks,
        records_rolled_back=lifecycle.records_rolled_back,
        updates_lost=lifecycle.updates_lost,
    )
    outcome = lifecycle.outcome
    if outcome is not None and lifecycle.over:
        status.error = outcome.error
        status.traceback = outcome.traceback
        status.usage_error = outcome.usage_error
    finished = outcome is not None and outcome.state == "finished"
    job.workload.describe(status, finished=finished)
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
        server = process if isinstance(process, Server) else None
        problem = process.waits or (server.problem if server else "")
        log = log_path(process.role, process.id)
        if job.fleet.external and isinstance(process, Worker):
            log = (
                process.log
            )  # the master does not keep the output of a worker that it did not start
        status.processes.add(
            role=process.kind,
            id=process.id,
            pid=process.pid,
            state=process.state,
            address=server.address if server else "",
            exit=process.exit,
            problem="" if process.state == EXITED else problem,
            kept=server is not None and job.fleet.servers.is_kept(server),
            expendable=replicas and server is not None and job.fleet.servers.is_expendable(server),
            log=log,
        )
    return status

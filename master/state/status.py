"""The answer to GetStatus. Pure."""

from __future__ import annotations

from collections.abc import Callable

from master.state.job import Job
from master.state.scripts import ScriptJob
from torch_edl.wire import master_pb2 as pb

LogPath = Callable[[str, int], str]


def describe(
    job: Job, *, events_after: int, now: float, master: pb.ProcessStatus, log_path: LogPath
) -> pb.GetStatusResponse:
    """The whole state of a job.

    Args:
        log_path: role and id to the log of a process that this master started.
    """
    queue, evaluations = job.work.queue, job.work.evaluations
    records, steps = job.done()
    wall_s = job.wall_s(now)
    loss = job.members.loss()
    status = pb.GetStatusResponse(
        job=job.config.name,
        kind=job.config.kind,
        strategy=job.fleet.strategy,
        strategy_reason=job.reason,
        state=job.state,
        epochs=job.config.data.epochs if job.config.kind == "train" else 1,
        records_done=records,
        steps=steps,
        loss=loss,
        events=job.events.after(events_after),
        damaged=job.damaged,
        nan_steps=job.left_out.nan_steps,
        wall_s=wall_s,
        workers_wanted=job.fleet.workers_wanted,
        logged=job.members.logged(),
    )
    if job.outcome is not None and job.over:
        status.error = job.outcome.error
        status.traceback = job.outcome.traceback
        status.usage_error = job.outcome.usage_error
    if queue is not None:
        status.records_total = queue.space.total_records
        status.epoch = queue.epoch
        status.tasks_todo, status.tasks_doing = queue.todo, queue.doing
        status.tasks_done = queue.done
    elif evaluations is not None:  # an evaluation job before its one evaluation, or after it
        status.records_total = evaluations.space.total_records
        over = evaluations.complete
        status.epoch = int(over)
        status.tasks_done = evaluations.space.total if over else 0
        status.tasks_todo = 0 if over else evaluations.space.total
    records_per_s, steps_per_s = job.rates.per_second()
    status.rates["records_per_s"] = records_per_s
    status.rates["steps_per_s"] = steps_per_s
    status.rates["mean_records_per_s"] = (
        (records - job.records_before) / wall_s if wall_s > 0 else 0.0
    )
    status.checkpoint = job.checkpoints.shown
    if isinstance(job, ScriptJob):
        job.describe(status)
    if evaluations is not None:
        for result in evaluations.results:
            status.evaluations.add(steps=result.steps, metrics=dict(result.metrics))
    status.processes.append(master)
    for process in job.fleet:
        # Nothing of ours keeps the output of a worker that an agent or torchrun started.
        agents_own = job.fleet.external and process.role == "worker"
        status.processes.add(
            role=process.role,
            id=process.id,
            pid=process.pid,
            state=process.state,
            address=process.address,
            exit=process.exit,
            log=process.log if agents_own else log_path(process.role, process.id),
        )
    return status

"""Calls of torchrun's agents, and of scripts on servers. Pure."""

from __future__ import annotations

from master.state.job.job import ManagedJob
from master.state.work.progress import is_beyond, records_of
from master.state.work.script_data import MOST_RECORDS
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

# ---- torchrun's agents; all raise UsageError if the job trains a model file ----


def join_round(
    job: ManagedJob, request: pb.JoinRoundRequest, now: float
) -> pb.JoinRoundResponse | None:
    workforce = job.script_workforce()
    rounds = workforce.rounds
    rounds.closed |= job.lifecycle.outcome is not None
    before = rounds.number
    answer = rounds.ask(request, now)
    if rounds.number != before:
        job.apply_all(workforce.round_formed(), now)
    return answer


def get_round(job: ManagedJob, request: pb.GetRoundRequest, now: float) -> pb.GetRoundResponse:
    return job.script_workforce().rounds.look(request.node, request.round, now)


def leave_round(
    job: ManagedJob, request: pb.LeaveRoundRequest, now: float
) -> pb.LeaveRoundResponse:
    workforce = job.script_workforce()
    workforce.rounds.leave(request.node)
    job.apply_all(workforce.node_left(request.node), now)
    return pb.LeaveRoundResponse()


def close_rounds(
    job: ManagedJob, request: pb.CloseRoundsRequest, now: float
) -> pb.CloseRoundsResponse:
    workforce = job.script_workforce()
    workforce.rounds.closed = True
    workforce.torchrun_error = workforce.torchrun_error or request.error
    return pb.CloseRoundsResponse()


# ---- the data of a script on servers; UsageError if the job trains a model file ----


def report_data(
    job: ManagedJob, request: pb.ReportDataRequest, now: float
) -> pb.ReportDataResponse:
    """Record the data of a worker's loader; the first report makes the tasks, and later ones with
    other data raise UsageError."""
    job.script_workforce()
    if job.lifecycle.outcome is None:
        job.prepare(job.preparation.data_reported(request.data), now)
    return pb.ReportDataResponse()


def fit_preprocessing(
    job: ManagedJob, request: pb.FitPreprocessingRequest, now: float
) -> pb.FitPreprocessingResponse | None:
    """Answer a script that needs its preprocessing; the first call begins the fitting pass."""
    job.script_workforce()
    fitting, member = job.tasks.fitting, job.members.get(request.worker_id)
    if member is None or member.draining or job.lifecycle.ending:
        return pb.FitPreprocessingResponse(leave=True)
    shards = [Shard(s.name, s.records, s.size, s.mtime_ns) for s in request.shards]
    try:
        fitting.ask(request.preprocessing, shards, trains=job.tasks.ready)
    except UsageError as error:
        job.lifecycle.fail(str(error), now, usage=True)
        return pb.FitPreprocessingResponse(leave=True)
    if fitting.ready:
        return pb.FitPreprocessingResponse(fitted=fitting.content)
    return pb.FitPreprocessingResponse(fit=True) if fitting.todo else None


# ---- loops over loaders, and values that scripts compute together ----


def begin_pass(
    job: ManagedJob, request: pb.BeginPassRequest, now: float
) -> pb.BeginPassResponse | None:
    """Begin a script's loop over a loader; UsageError if its epochs have too many records."""
    if records_of(job.tasks.main, request.epochs) > MOST_RECORDS:
        raise UsageError(
            f"job.loader: {request.epochs:,} epochs; at most {MOST_RECORDS:,} records count"
        )
    if _leaves(job, request.worker_id):
        return pb.BeginPassResponse(leave=True)
    if not job.meetings.begin_pass(request.worker_id, request.number, request.epochs):
        return None
    if not _extend(job, request.epochs):
        return None
    return pb.BeginPassResponse(begun=True, over=_is_over(job, request.number))


def meet(job: ManagedJob, request: pb.MeetRequest, now: float) -> pb.MeetResponse | None:
    """Synchronize a script with the others on a value that they compute together."""
    if _leaves(job, request.worker_id):
        return pb.MeetResponse(leave=True)
    return job.meetings.meet(request, over=_is_over(job, request.passes))


def _extend(job: ManagedJob, epochs: int) -> bool:
    """Add the tasks of further epochs if a script loops more often than announced. Returns False
    while the final checkpoint of the earlier epochs is being written."""
    main = job.tasks.main
    if main is None or epochs <= main.space.epochs:
        return True
    if job.tasks.trained and not job.milestones.settled:
        return False
    assert isinstance(main.space, TaskSpace)
    main.space.extend(epochs)
    job.milestones.settled = False
    job.checkpoints.continued()
    job.lifecycle.continued()
    return True


def _is_over(job: ManagedJob, number: int) -> bool:
    """Return whether records of a later loop are done."""
    epochs = job.meetings.epochs.get(number)
    return epochs is not None and is_beyond(job.tasks.main, epochs)


def _leaves(job: ManagedJob, worker: int) -> bool:
    member = job.members.get(worker)
    return member is None or member.draining or job.lifecycle.ending

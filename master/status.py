"""What a job tells of itself: events, rates, and the answer to GetStatus. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch_edl.wire import master_pb2 as pb

if TYPE_CHECKING:
    from master.job import Job

LogPath = Callable[[str, int], str]

_EVENTS = 1000
_WINDOW_S = 10.0
_SAMPLE_S = 0.5


class Events:
    """The last events, numbered from 1."""

    def __init__(self) -> None:
        self._kept: deque[pb.Event] = deque(maxlen=_EVENTS)
        self._count = 0

    def add(self, level: str, text: str, wall_time: float) -> None:
        """Appends one; ``wall_time`` in Unix seconds."""
        self._count += 1
        self._kept.append(pb.Event(sequence=self._count, time=wall_time, level=level, text=text))

    def after(self, sequence: int) -> list[pb.Event]:
        """Those with a higher number that are still kept, in order."""
        new = min(self._count - sequence, len(self._kept))
        return [self._kept[i] for i in range(len(self._kept) - new, len(self._kept))]


class Rates:
    """Records and minibatches per second over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def sample(self, now: float, records: int, steps: int) -> None:
        """Notes how much is done; going back (after a restore) begins anew."""
        if self._samples:
            last = self._samples[-1]
            if records < last[1]:
                self._samples.clear()
            elif now - last[0] < _SAMPLE_S:
                return
        self._samples.append((now, records, steps))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float]:
        """(records, minibatches) per second; zeros before there are two samples."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        span = last[0] - first[0]
        return (last[1] - first[1]) / span, (last[2] - first[2]) / span


def describe(
    job: Job, *, events_after: int, now: float, master: pb.ProcessStatus, log_path: LogPath
) -> pb.GetStatusResponse:
    """The whole state of a job.

    Args:
        log_path: role and id to the log of a process.
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
        nan_steps=job.nan_steps,
        wall_s=wall_s,
        workers_wanted=job.fleet.workers_wanted,
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
    if job.keeper.newest is not None and job.config.checkpoint.dir:
        status.checkpoint = str(job.keeper.newest.path)
    if evaluations is not None:
        for result in evaluations.results:
            status.evaluations.add(steps=result.steps, metrics=dict(result.metrics))
    status.processes.append(master)
    for process in job.fleet:
        status.processes.add(
            role=process.role,
            id=process.id,
            pid=process.pid,
            state=process.state,
            address=process.address,
            exit=process.exit,
            log=log_path(process.role, process.id),
        )
    return status

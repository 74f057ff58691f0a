"""Events of a job: one frozen class for each kind, with its fields and its sentence.

The master appends events to the log of the job. An event travels as its kind, its fields and its
text, to commands, observers and ``events.jsonl``. No program reads the text to find out what
happened.

To add a kind, add a class here; its name in snake case is the kind. :class:`Other` stands for an
event of a kind that this version does not know. A process is named by its role and number, such as
``worker-3`` or ``ps-0``. Pure.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch_edl.typed_json import convert

LEVELS = ("debug", "info", "warning", "error")
"""Levels of events, from the least to the most important. A terminal shows all but ``debug``."""

KINDS: dict[str, type[Event]] = {}
"""All classes of events by kind, those of plugins included."""
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
_PROCESS = re.compile(r"[a-z]{1,20}-\d{1,18}")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a job."""

    kind: ClassVar[str] = ""
    """Name of the class in snake case, such as ``worker_lost``."""
    LEVEL: ClassVar[str] = "info"
    FROM_COMMANDS: ClassVar[bool] = False
    """True if a command such as ``torch-edl chaos`` reports the event to the master."""

    traceback: str = ""
    """Traceback of the user's code; empty if it did not raise."""

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        super().__init_subclass__()
        cls.kind = _WORD.sub("_", cls.__name__).lower()
        if not abstract:
            KINDS[cls.kind] = cls

    @property
    def level(self) -> str:
        """One of :data:`LEVELS`."""
        return self.LEVEL

    @property
    def text(self) -> str:
        """The event in one sentence."""
        raise NotImplementedError

    @property
    def disrupts(self) -> bool:
        """True if the job may make no step for a while after the event."""
        return False

    @property
    def is_unseen(self) -> bool:
        """True if no master ran just before the event."""
        return False

    @property
    def lost_process(self) -> str:
        """The process that was lost; empty if none was."""
        return ""

    @property
    def silence_s(self) -> float:
        """Seconds before the event in which the process may already have been dead."""
        return 0.0

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that differ from their default, as JSON values; a number that is not finite
        is None."""
        return {
            f.name: None if isinstance(value, float) and not math.isfinite(value) else value
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) != f.default
        }


def event_of(kind: str, fields: Mapping[str, Any], *, level: str, text: str) -> Event:
    """Return the event that was sent as kind, fields, level and text: an :class:`Other` if this
    version does not know the kind, or if the fields do not fit."""
    known = KINDS.get(kind)
    if known is not None:
        try:
            event: Event = convert(fields, known)
        except ValueError:
            pass
        else:
            process = getattr(event, "process", None)
            if process is None or _PROCESS.fullmatch(process):
                return event
    return Other(name=kind, severity=level if level in LEVELS else "info", message=text)


@dataclass(frozen=True, kw_only=True)
class Other(Event):
    """An event that has no class: a warning of a platform, or the event of another version."""

    name: str = ""
    """The kind that was sent; empty if there is none."""
    severity: str
    """Level of the event."""
    message: str
    """Text of the event."""

    @property
    def level(self) -> str:
        return self.severity

    @property
    def text(self) -> str:
        return self.message


# ---- parts of sentences ----


def counted(count: int, noun: str) -> str:
    """Return a count and its noun: ``1 worker``, ``2,000 workers``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def role_of(process: str) -> str:
    """Return the role of a process by its name: ``worker`` of ``worker-3``."""
    return process.rpartition("-")[0]


Way = Literal["ended", "taken", "silent", "gone", "late", "unstarted"]
"""How a process was lost. ``ended``: its exit was seen. ``taken``: it was preempted or evicted, or
its machine was lost. ``silent``: it did not answer, or made no step, and was declared lost.
``gone``: it no longer takes part, and its exit was not seen. ``late``: it did not run
in time after its start. ``unstarted``: it could not be started."""

_WAYS: Mapping[str, str] = {
    "ended": "ended with ",
    "taken": "was taken away: ",
    "silent": "declared lost: ",
    "gone": "lost: ",
    "late": "does not run ",
    "unstarted": "cannot be started: ",
}
UNKNOWN_EXIT = "exit code not known"
"""Cause of a process that ended without a known exit code."""


def how(way: str, cause: str) -> str:
    """Return the predicate of a sentence about a lost process, such as ``ended with signal 9``."""
    if way == "ended" and cause.startswith(UNKNOWN_EXIT):
        return f"ended, {cause}"
    return f"{_WAYS[way]}{cause}"


@dataclass(frozen=True, kw_only=True)
class Loss(Event, abstract=True):
    """A process is lost. The classes below say what follows."""

    LEVEL = "warning"

    process: str
    way: Way
    cause: str
    """Cause of the loss, such as ``signal 9`` or ``no heartbeat for 30 s``."""
    silent_s: float = 0.0
    """Seconds without a heartbeat or a step before the loss was declared; 0 if the exit was
    seen."""

    @property
    def disrupts(self) -> bool:
        return True

    @property
    def lost_process(self) -> str:
        return self.process

    @property
    def silence_s(self) -> float:
        return self.silent_s

    @property
    def what(self) -> str:
        """The loss, as a part of a sentence."""
        return f"{self.process} {how(self.way, self.cause)}"


# ---- the job ----


@dataclass(frozen=True, kw_only=True)
class StrategyChosen(Event):
    """The strategy is known."""

    strategy: str
    reason: str

    @property
    def text(self) -> str:
        return f"strategy {self.strategy}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class DeviceUsed(Event):
    """The first worker reported its device."""

    device: str

    @property
    def text(self) -> str:
        return f"the first worker computes on {self.device}"


@dataclass(frozen=True, kw_only=True)
class TrainingResumed(Event):
    """The job continues from a checkpoint."""

    checkpoint: str

    @property
    def text(self) -> str:
        return f"training continues from {self.checkpoint}"


@dataclass(frozen=True, kw_only=True)
class NothingToResume(Event):
    """``--resume`` was set, but there is no checkpoint."""

    LEVEL = "warning"

    @property
    def text(self) -> str:
        return "no checkpoint yet: training starts from the beginning"


@dataclass(frozen=True, kw_only=True)
class ModelLoaded(Event):
    """The job begins with the model of ``--load``."""

    source: str
    with_optimizer: bool

    @property
    def text(self) -> str:
        what = "values, without optimizer state (--load-optimizer also loads the state)"
        if self.with_optimizer:
            what = "values and optimizer state; learning rates and schedules are those of this job"
        return f"the model starts from {self.source}: its {what}"


@dataclass(frozen=True, kw_only=True)
class TasksMade(Event):
    """The data are counted and cut into tasks."""

    records: int
    tasks: int
    files: int = 0
    """Number of files; 0 for streams, and for the data of a script."""
    streams: int = 0

    @property
    def text(self) -> str:
        parts = [f"{counted(self.records, 'record')} in {counted(self.tasks, 'task')}"]
        parts += [counted(self.files, "file")] * bool(self.files)
        parts += [counted(self.streams, "stream")] * bool(self.streams)
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class NothingLeft(Event):
    """The checkpoint already holds all the training."""

    LEVEL = "warning"

    option: str
    """Option to raise."""

    @property
    def text(self) -> str:
        return (
            "nothing is left to train: the checkpoint is of the end of the job; raise "
            f"{self.option} to continue from there"
        )


@dataclass(frozen=True, kw_only=True)
class JobScaled(Event):
    """The user changed the number of workers or servers."""

    workers_before: int = 0
    workers: int = 0
    """Number of workers from now on; 0: unchanged."""
    servers_before: int = 0
    servers: int = 0
    """Number of servers from now on; 0: unchanged."""

    @property
    def text(self) -> str:
        said = []
        if self.workers:
            said.append(f"workers: {self.workers_before} before, {self.workers} from now on")
        if self.servers:
            was = f"{self.servers_before} before, {self.servers} from now on"
            said.append(f"parameter servers wanted: {was}")
        return "; ".join(said)


@dataclass(frozen=True, kw_only=True)
class JobStopping(Event):
    """The job is to stop: all workers leave, and a final checkpoint is written."""

    LEVEL = "warning"

    reason: str

    @property
    def text(self) -> str:
        return f"stopping: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class LastCheckpointMissing(Event):
    """A job stopped, and its last training is in no checkpoint."""

    LEVEL = "warning"

    why: str

    @property
    def text(self) -> str:
        return f"no last checkpoint: {self.why}"


@dataclass(frozen=True, kw_only=True)
class JobFinished(Event):
    """All work of the job is done."""

    @property
    def text(self) -> str:
        return "finished"


@dataclass(frozen=True, kw_only=True)
class JobFailed(Event):
    """The job failed."""

    LEVEL = "error"

    error: str

    @property
    def text(self) -> str:
        return self.error


@dataclass(frozen=True, kw_only=True)
class MasterRestarted(Event):
    """Another process took over as the master of the job."""

    LEVEL = "warning"

    workers: int
    """Number of workers that continue."""

    @property
    def disrupts(self) -> bool:
        return True

    @property
    def is_unseen(self) -> bool:
        return True

    @property
    def text(self) -> str:
        verb = "continues" if self.workers == 1 else "continue"
        return f"the master was restarted: {self.workers} worker{'s' * (self.workers != 1)} {verb}"


@dataclass(frozen=True, kw_only=True)
class StateNotStored(Event):
    """The state of the job cannot be stored, so that no restarted master would know it."""

    LEVEL = "warning"

    error: str

    @property
    def text(self) -> str:
        then = "training continues; no process joins or starts until it can"
        return f"the state of the job cannot be kept: {self.error}; {then}"


@dataclass(frozen=True, kw_only=True)
class StateStoredAgain(Event):
    """The state of the job can be stored again."""

    @property
    def text(self) -> str:
        return "the state of the job is kept again"


# ---- data and progress ----


@dataclass(frozen=True, kw_only=True)
class RecordsDamaged(Event):
    """Damaged records were found and are left out."""

    LEVEL = "warning"

    records: int

    @property
    def text(self) -> str:
        return f"damaged records left out: {self.records:,}"


@dataclass(frozen=True, kw_only=True)
class RecordsRemoved(Event):
    """Records of a stream were removed before any task contained them."""

    LEVEL = "warning"

    partition: str
    first: int
    """First offset that was removed."""
    last: int
    """Last offset that was removed."""

    @property
    def text(self) -> str:
        offsets = f"the offsets {self.first} to {self.last}"
        return f"{self.partition}: {offsets} were removed before they were read, and are left out"


@dataclass(frozen=True, kw_only=True)
class RecordsSkipped(Event):
    """Records are skipped, because workers died while they trained on them."""

    LEVEL = "warning"

    blame: str
    """Sentence about the records and the deaths."""

    @property
    def text(self) -> str:
        return f"{self.blame}; the records are left out (--skip-damaged)"


@dataclass(frozen=True, kw_only=True)
class DataTouched(Event):
    """Files were rewritten since the checkpoint, with the same size, first and last block."""

    LEVEL = "warning"

    first: str
    """The first of the files."""
    files: int

    @property
    def text(self) -> str:
        more = f" and {self.files - 1:,} more" * (self.files > 1)
        return (
            f"{self.first}{more}: written since the checkpoint, with the same size, first and last "
            "block; if other records are in there, start afresh with another --checkpoint-dir"
        )


@dataclass(frozen=True, kw_only=True)
class StreamsSilent(Event):
    """The brokers of the streams do not answer."""

    LEVEL = "warning"

    error: str

    @property
    def text(self) -> str:
        return f"no new records for now: {self.error}"


@dataclass(frozen=True, kw_only=True)
class StreamsAnswer(Event):
    """The brokers of the streams answer again."""

    @property
    def text(self) -> str:
        return "the streams answer again"


@dataclass(frozen=True, kw_only=True)
class PreprocessingFitted(Event):
    """The statistics of the preprocessing are complete."""

    records: int

    @property
    def text(self) -> str:
        return f"preprocessing: fitted by {self.records:,} records"


@dataclass(frozen=True, kw_only=True)
class EpochDone(Event):
    """An epoch is over."""

    epoch: int
    """Number of the epoch, from 1."""
    epochs: int

    @property
    def text(self) -> str:
        return f"epoch {self.epoch:,} of {self.epochs:,} is done"


@dataclass(frozen=True, kw_only=True)
class LimitReached(Event):
    """A limit ended the training before its last epoch was done."""

    option: str
    """Option that sets the limit."""
    limit: int
    epoch: int = 0
    """Number of whole epochs before the limit."""
    epochs: int = 0

    @property
    def text(self) -> str:
        after = f" after {self.epoch:,} of {self.epochs:,} epochs" if self.epoch else ""
        return f"{self.option} {self.limit} is reached{after}"


@dataclass(frozen=True, kw_only=True)
class StoppedEarly(Event):
    """The rule of ``--early-stop`` ended the training."""

    epoch: int
    """Last epoch of the training, from 1."""
    metric: str
    patience: int
    """Epochs without a better value after which the rule ends the training."""
    best: float | None
    """Best value of the metric; None if no value was finite."""
    best_epoch: int

    @property
    def text(self) -> str:
        best = math.nan if self.best is None else self.best
        return (
            f"early stop after epoch {self.epoch}: {self.metric} has not been better for "
            f"{self.patience} epoch{'s' * (self.patience != 1)} than {best:.6g} after "
            f"epoch {self.best_epoch}"
        )


@dataclass(frozen=True, kw_only=True)
class ModelEvaluated(Event):
    """An evaluation is complete."""

    steps: int
    """Minibatches of the model that was evaluated; 0 in a job that only evaluates."""
    metrics: Mapping[str, float | None]
    """Values by name; None if a value is not finite."""

    @property
    def text(self) -> str:
        numbers = {n: float("nan") if v is None else v for n, v in self.metrics.items()}
        values = ", ".join(f"{name} {value:.6g}" for name, value in sorted(numbers.items()))
        at = f" at step {self.steps:,}" if self.steps else ""
        return f"evaluation{at}: {values}"


@dataclass(frozen=True, kw_only=True)
class StepsLeftOut(Event):
    """Many minibatches were left out, because their loss was not finite."""

    LEVEL = "warning"

    left_out: int
    steps: int

    @property
    def text(self) -> str:
        return (
            f"--on-nan skip left {self.left_out:,} of {self.steps:,} minibatches out: their "
            "loss was not finite"
        )


@dataclass(frozen=True, kw_only=True)
class LossNotFinite(Event):
    """The loss that a script logged is NaN or infinite."""

    LEVEL = "warning"

    process: str
    loss: str
    """The loss as a text: JSON has no NaN."""
    steps: int

    @property
    def text(self) -> str:
        return (
            f"{self.process}: the loss is {self.loss} at step {self.steps:,}; lower the learning "
            "rate, or look at the data"
        )


@dataclass(frozen=True, kw_only=True)
class LoopLeft(Event):
    """A script ended its loop before the last task."""

    epoch: int = 0
    """Number of whole epochs, if the script stopped after one; else 0."""
    epochs: int = 0
    tasks: int = 0
    """Number of tasks that are left; 0 if the script stopped after a whole epoch."""

    @property
    def level(self) -> str:
        return "warning" if self.tasks else "info"

    @property
    def text(self) -> str:
        if self.tasks:
            return f"the script left its loop with {counted(self.tasks, 'task')} to do"
        return f"the script stopped after {self.epoch:,} of {self.epochs:,} epochs"


@dataclass(frozen=True, kw_only=True)
class TaskFailed(Event):
    """The user's code failed in a task, which is tried again."""

    LEVEL = "warning"

    process: str
    error: str
    failure: int
    """Number of failures of this task."""
    limit: int
    """Number of failures at which the job fails."""

    @property
    def text(self) -> str:
        return (
            f"{self.process}: {self.error}; failure {self.failure} of {self.limit} of "
            "this task, which is tried again"
        )


@dataclass(frozen=True, kw_only=True)
class TrainingBegan(Event):
    """A script began another training."""

    number: int

    @property
    def text(self) -> str:
        return f"training {self.number} of the script begins"


@dataclass(frozen=True, kw_only=True)
class ScriptRestarted(Event):
    """All processes of a training of a script are gone: the script starts again."""

    LEVEL = "error"

    training: int
    """Number of the training that is lost."""

    @property
    def text(self) -> str:
        return f"no process of training {self.training} is left: the script starts again"


# ---- checkpoints and outputs ----


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten(Event):
    """A checkpoint is complete."""

    path: str

    @property
    def text(self) -> str:
        return f"checkpoint {self.path}"


@dataclass(frozen=True, kw_only=True)
class BestCheckpointFound(Event):
    """The newest checkpoint is the best so far."""

    metric: str
    value: float
    steps: int

    @property
    def text(self) -> str:
        return f"best checkpoint so far: {self.metric} {self.value:.6g} at step {self.steps:,}"


@dataclass(frozen=True, kw_only=True)
class CheckpointNotWritten(Event):
    """A checkpoint could not be written."""

    LEVEL = "warning"

    error: str

    @property
    def text(self) -> str:
        return f"checkpoint not written, the next attempt follows: {self.error}"


@dataclass(frozen=True, kw_only=True)
class OutputReady(Event):
    """The result of the job is in its place."""

    what: str
    """``model`` or ``predictions``."""
    path: str

    @property
    def text(self) -> str:
        return f"{self.what} written to {self.path}"


# ---- workers ----


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Loss):
    """A worker is lost, and the job goes on without it."""

    returned: bool = True
    """True if the tasks of the worker were returned to the queue; False in a ring."""
    stacks: str = ""
    """Stacks of the threads of a worker that made no step; empty if there are none."""

    @property
    def text(self) -> str:
        then = "its tasks were returned to the queue" if self.returned else (
            "the other workers continue"
        )  # fmt: skip
        stacks = f". Its threads:\n{self.stacks}" if self.stacks else ""
        return f"{self.what}; {then}{stacks}"


@dataclass(frozen=True, kw_only=True)
class ProcessLeft(Event):
    """A process ended that was asked to leave."""

    process: str
    way: Way
    cause: str
    preempted: bool = False
    """True if a notice of preemption asked the process."""
    took_s: float = 0.0
    """Seconds from the notice to the end."""
    records_again: int = 0
    """Records that the process had trained, and that are trained again."""

    @property
    def disrupts(self) -> bool:
        return self.preempted

    @property
    def text(self) -> str:
        cost = ""
        if self.preempted:
            again = f"{self.records_again:,} of its records are trained again"
            cost = f"; preempted: left in {self.took_s:.1f} s, {again}"
        return f"{self.process} {how(self.way, self.cause)}, as asked{cost}"


@dataclass(frozen=True, kw_only=True)
class WorkerAskedToLeave(Event):
    """A worker received SIGTERM from outside."""

    process: str

    @property
    def text(self) -> str:
        return f"{self.process} was asked to leave (SIGTERM)"


@dataclass(frozen=True, kw_only=True)
class WorkerPreempted(Event):
    """A worker received a notice of preemption."""

    process: str
    notice: str

    @property
    def text(self) -> str:
        return f"{self.process} is preempted ({self.notice}): it returns its tasks"


@dataclass(frozen=True, kw_only=True)
class WorkerLeft(Event):
    """A worker left the job before the end of its script."""

    process: str

    @property
    def text(self) -> str:
        return f"{self.process} left"


@dataclass(frozen=True, kw_only=True)
class SpareEnded(Event):
    """A spare ended."""

    process: str
    way: Way
    cause: str
    log: str

    @property
    def text(self) -> str:
        ended = f"{self.process} {how(self.way, self.cause)}"
        return f"{ended}; its log is {self.log}; no worker is lost"


@dataclass(frozen=True, kw_only=True)
class StartFailed(Event):
    """A process could not be started, and another attempt follows."""

    LEVEL = "warning"

    process: str
    why: str

    @property
    def text(self) -> str:
        return f"{self.process} cannot be started: {self.why}; the next attempt follows"


@dataclass(frozen=True, kw_only=True)
class WorkersMissing(Event):
    """Fewer workers run than the minimum, after one was lost."""

    LEVEL = "warning"

    running: int
    minimum: int

    @property
    def text(self) -> str:
        text = f"workers left: {self.running} of at least {self.minimum}; replacements start"
        return text + (", and the job continues meanwhile" if self.running else "")


@dataclass(frozen=True, kw_only=True)
class WorkersPending(Event):
    """Fewer workers run than the minimum, and the others wait for a place."""

    LEVEL = "warning"

    running: int
    minimum: int
    pending: int

    @property
    def text(self) -> str:
        counts = f"workers that run: {self.running}, minimum: {self.minimum}"
        return f"{counts}; {self.pending} wait for a place"


@dataclass(frozen=True, kw_only=True)
class WorkersEnough(Event):
    """The minimum of workers runs again."""

    running: int
    minimum: int

    @property
    def text(self) -> str:
        return f"workers that run: {self.running}, minimum: {self.minimum}"


@dataclass(frozen=True, kw_only=True)
class ProcessesPending(Event):
    """Processes wait for a place on a machine."""

    LEVEL = "warning"

    role: str
    count: int
    process: str
    """The process that has waited longest."""
    why: str
    fix: str = ""
    """Advice; empty if there is none."""

    @property
    def text(self) -> str:
        who = (
            f"{self.process} waits" if self.count == 1 else f"{self.count} {PLURAL[self.role]} wait"
        )
        return f"{who}: {self.why}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, kw_only=True)
class NonePending(Event):
    """No process of a role waits any longer."""

    role: str

    @property
    def text(self) -> str:
        return f"no {PLURAL[self.role]} are waiting now"


PLURAL: Mapping[str, str] = {
    "worker": "workers",
    "spare": "spares",
    "ps": "parameter servers",
}
"""Names of several processes, by role."""


# ---- rings and rounds ----


@dataclass(frozen=True, kw_only=True)
class RingFormed(Event):
    """Workers formed a ring."""

    ring: int
    """Number of the ring, from 1."""
    workers: int

    @property
    def text(self) -> str:
        return f"ring {self.ring}: {self.workers} worker{'s' * (self.workers != 1)}"


@dataclass(frozen=True, kw_only=True)
class RoundFormed(Event):
    """The nodes of torchrun formed a round."""

    number: int

    @property
    def text(self) -> str:
        return f"round {self.number} of torchrun's nodes"


# ---- parameter servers and the model ----


@dataclass(frozen=True, kw_only=True)
class ServersReady(Event):
    """All parameter servers listen."""

    count: int

    @property
    def text(self) -> str:
        are = "the parameter server is" if self.count == 1 else (
            f"all {self.count} parameter servers are"
        )  # fmt: skip
        return f"{are} ready"


@dataclass(frozen=True, kw_only=True)
class ServerLost(Loss):
    """A parameter server is lost; another one takes over its shard with all that was
    acknowledged."""

    shard: int

    @property
    def disrupts(self) -> bool:
        return self.way not in ("late", "unstarted")

    @property
    def lost_process(self) -> str:
        return self.process if self.disrupts else ""

    @property
    def text(self) -> str:
        then = f"another server takes over shard {self.shard}, and nothing is lost"
        return f"{self.what}; {then}"


@dataclass(frozen=True, kw_only=True)
class RoomMade(Event):
    """A worker or a spare ends, and a server starts in its pod."""

    process: str

    @property
    def text(self) -> str:
        return f"{self.process} makes room for a server"


@dataclass(frozen=True, kw_only=True)
class ModelRestored(Event):
    """The model was lost and is restored from a checkpoint, or begins anew."""

    LEVEL = "error"

    why: str
    """What was lost, as a part of a sentence."""
    process: str | None = None
    """The process whose loss is the cause; None if there is none."""
    way: Way = "ended"
    """How the process was lost."""
    cause: str = ""
    """Cause of its loss."""
    silent_s: float = 0.0
    """Seconds for which the process was silent before its loss was declared."""
    who: str
    """The processes that restart: ``the worker``, ``the workers`` or ``the servers``."""
    checkpoint: str = ""
    """The checkpoint; empty: the model begins anew."""
    records_again: int = 0
    """Records that are trained again."""

    @property
    def disrupts(self) -> bool:
        return True

    @property
    def lost_process(self) -> str:
        return self.process or ""

    @property
    def silence_s(self) -> float:
        return self.silent_s

    @property
    def text(self) -> str:
        s = "s" * (self.who == "the worker")
        point = self.checkpoint or "the beginning, there is no checkpoint"
        again = f", and train{s} {self.records_again:,} records again" * bool(self.records_again)
        return f"{self.why}; {self.who} restart{s} from {point}{again}"


@dataclass(frozen=True, kw_only=True)
class ModelMoved(Event):
    """The model moves to other servers."""

    servers_before: int
    servers: int

    @property
    def disrupts(self) -> bool:
        return True

    @property
    def text(self) -> str:
        moves = f"the model moves from {self.servers_before} to {self.servers} parameter servers"
        return f"{moves}; nothing is rolled back"


@dataclass(frozen=True, kw_only=True)
class MoveDelayed(Event):
    """The model cannot move to other servers yet."""

    LEVEL = "warning"

    error: str

    @property
    def text(self) -> str:
        return f"the parameter servers stay for now, the next attempt follows: {self.error}"


@dataclass(frozen=True, kw_only=True)
class UpdatesLost(Event):
    """A server lacks updates of a damaged journal, for good."""

    LEVEL = "error"

    process: str
    shard: int
    updates: int
    damage: str

    @property
    def text(self) -> str:
        lost = f"{counted(self.updates, 'update')} of shard {self.shard}"
        return f"{self.process} goes on without {lost}, lost for good: {self.damage}"


@dataclass(frozen=True, kw_only=True)
class RecordsLacked(Event):
    """A server lacks records that it had acknowledged: its machine lost power."""

    process: str
    shard: int
    records: int
    trained_again: bool
    """True if the records are trained again; False if the shard goes on without them."""

    @property
    def level(self) -> str:
        return "warning" if self.trained_again else "error"

    @property
    def text(self) -> str:
        records = counted(self.records, "record")
        text = f"{self.process} lacks {records} that it had: its machine lost power"
        if self.trained_again:
            return f"{text}; they are trained again"
        return f"{text}, and shard {self.shard} goes on without them; --fsync always loses none"


@dataclass(frozen=True, kw_only=True)
class ServerRejects(Event):
    """A server rejects pushes."""

    LEVEL = "warning"

    process: str
    problem: str

    @property
    def text(self) -> str:
        return f"{self.process}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class ServerAccepts(Event):
    """A server accepts pushes again."""

    process: str

    @property
    def text(self) -> str:
        return f"{self.process} accepts pushes again"


@dataclass(frozen=True, kw_only=True)
class ServerLeaves(Event):
    """A server was asked to leave, by SIGTERM or by a notice of preemption."""

    process: str
    notice: str = ""
    """Notice of preemption; empty: SIGTERM."""
    then: Literal["shard", "copies", "move"]
    """``shard``: another server takes the shard. ``copies``: the server waits until others have
    copies. ``move``: the model moves to other servers."""

    @property
    def text(self) -> str:
        why = f"is preempted ({self.notice})" if self.notice else "was asked to leave (SIGTERM)"
        return f"{self.process} {why}: {_THEN[self.then]}"


_THEN: Mapping[str, str] = {
    "shard": "another server takes its shard",
    "copies": "it waits for copies on others",
    "move": "the model moves to other servers",
}


# ---- machines ----


@dataclass(frozen=True, kw_only=True)
class MachineJoined(Event):
    """A machine accepts processes of the job from now on."""

    host: str
    slots: int
    """Maximum number of workers."""
    again: bool = False
    """True if the machine had joined under an earlier master."""

    @property
    def text(self) -> str:
        if self.again:
            return f"machine {self.host} reports to the restarted master"
        return f"machine {self.host} has joined, with room for {counted(self.slots, 'worker')}"


@dataclass(frozen=True, kw_only=True)
class MachineLeft(Event):
    """A machine accepts no more processes."""

    host: str
    why: str = ""
    """Why the machine is lost with its processes; empty if it leaves after they have ended."""

    @property
    def level(self) -> str:
        return "warning" if self.why else "info"

    @property
    def text(self) -> str:
        if self.why:
            return f"machine {self.host} is lost with its processes: {self.why}"
        return f"machine {self.host} has left"


@dataclass(frozen=True, kw_only=True)
class MachineAvoided(Event):
    """A machine lost several processes: new ones start on other machines if there is a choice."""

    LEVEL = "warning"

    host: str
    losses: int
    within_s: float
    last: str
    """How the last of the processes ended."""

    @property
    def text(self) -> str:
        return (
            f"{self.host} lost {self.losses} processes within {self.within_s / 60:g} minutes, the "
            f"last one: {self.last}; other machines are preferred for as long"
        )


# ---- slow processes ----


@dataclass(frozen=True, kw_only=True)
class Judged(Event, abstract=True):
    """A watch reports that a process became slow or recovered."""

    LEVEL = "warning"

    process: str
    then: Literal["", "replaced", "moved"] = ""
    """What the master did: it replaces the process, moves the model to other servers, or
    nothing."""

    @property
    def finding(self) -> str:
        """What the watch found, as a part of a sentence."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        moved = "; the model moves to other servers"
        return self.finding + {"": "", "replaced": "; it is replaced", "moved": moved}[self.then]


@dataclass(frozen=True, kw_only=True)
class ProcessSlow(Judged):
    """A process is slower than the others that do the same work."""

    share: float
    """Rate of the process as a part of the median rate."""
    compared: int
    """Number of the processes that were compared."""
    within_s: float
    likely: str = ""
    """Likely cause; empty if none is visible."""

    @property
    def finding(self) -> str:
        kind = "servers" if role_of(self.process) == "ps" else "workers"
        rate = f"{self.share:.0%} of the median rate of {self.compared} {kind}"
        why = self.likely or "no cause is visible on its machine"
        return f"{self.process} is slow: {rate} for {self.within_s:g} s; {why}"


@dataclass(frozen=True, kw_only=True)
class ProcessRecovered(Judged):
    """A process is no longer slow."""

    LEVEL = "info"

    @property
    def finding(self) -> str:
        return f"{self.process} is no longer slow"


@dataclass(frozen=True, kw_only=True)
class MachineSlow(Judged):
    """The machine of a worker was slow in a speed test."""

    share: float
    """Speed of the machine as a part of the median speed."""
    compared: int
    flops: float
    """Floating-point operations a second of a matrix product."""
    copied: float
    """Bytes a second of copies in memory."""

    @property
    def finding(self) -> str:
        return (
            f"{self.process} has a slow machine: {self.share:.0%} of the median speed of "
            f"{self.compared} workers in a speed test: {self.flops / 1e9:.3g} GFLOP/s "
            f"and {self.copied / 1e9:.3g} GB/s for copies in memory"
        )


# ---- chaos ----


@dataclass(frozen=True, kw_only=True)
class ChaosBegan(Event):
    """``torch-edl chaos`` begins to inject faults."""

    FROM_COMMANDS = True
    LEVEL = "warning"

    seconds: float
    seed: int

    @property
    def text(self) -> str:
        return f"chaos begins: {self.seconds:g} s of faults, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class FaultInjected(Event):
    """``torch-edl chaos`` struck a process."""

    FROM_COMMANDS = True
    LEVEL = "warning"

    process: str
    place: str
    """Pid or pod of the process."""
    fault: Literal["killed", "terminated", "paused", "continued", "deleted"]
    pause_s: float = 0.0
    """Seconds for which the process is paused."""

    @property
    def what(self) -> str:
        """The fault, as a sentence."""
        verb = {
            "terminated": "told to end",
            "paused": f"paused for {self.pause_s:g} s",
            "continued": "continues",
        }.get(self.fault, self.fault)
        return f"{self.process} ({self.place}) {verb}"

    @property
    def text(self) -> str:
        return f"chaos: {self.what}"


@dataclass(frozen=True, kw_only=True)
class ChaosSettling(Event):
    """No fault follows; the command waits for the job to make progress."""

    FROM_COMMANDS = True

    @property
    def text(self) -> str:
        return "chaos: the last fault is over; waiting for progress"


@dataclass(frozen=True, kw_only=True)
class ChaosEnded(Event):
    """``torch-edl chaos`` gave its verdict."""

    FROM_COMMANDS = True
    killed: str
    """Number of killed processes by role, as a text."""
    verdict: str
    held: bool

    @property
    def level(self) -> str:
        return "info" if self.held else "error"

    @property
    def text(self) -> str:
        return f"chaos ends: killed {self.killed}; {self.verdict}"


# ---- for the record: not shown in a terminal ----


@dataclass(frozen=True, kw_only=True)
class ProcessChanged(Event):
    """A process of the job entered another state."""

    LEVEL = "debug"

    process: str
    is_spare: bool = False
    """True for a pod without a process, in which the worker of this name may start."""
    state: str
    """``pending``, ``starting``, ``running``, ``draining``, ``stopping`` or ``exited``."""
    pid: int = 0
    exit: str = ""
    """How the process ended; empty while it runs."""
    died: bool = False
    """True if the process ended by itself, with an error or by a signal."""
    place: str = ""
    """Slot or shard, which the replacement of the process takes over, such as ``slot 3``; empty if
    unknown."""

    @property
    def text(self) -> str:
        return f"{self.process}: {self.exit or self.state}"


@dataclass(frozen=True, kw_only=True)
class WorkerWaited(Event):
    """A worker that made no step for longer than usual makes steps again, or has ended."""

    LEVEL = "debug"

    process: str
    seconds: float

    @property
    def text(self) -> str:
        return f"{self.process} made no step for {self.seconds:.0f} s"

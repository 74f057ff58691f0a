"""Checkpoints of a job, and its output at the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.state.actions import (
    CheckpointFailed,
    CheckpointSaved,
    CommitLocal,
    Effect,
    EffectEvent,
    Failure,
    Flush,
    Flushed,
    MergePredictions,
    OutputWritten,
    Prune,
    Release,
    Saved,
    SaveServers,
    WriteOutput,
)
from master.state.job.checkpoint_policy import ATTEMPTS, BestCheckpoint, CheckpointSchedule
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.config.parts import training_dir
from torch_edl.data.stream_space import AnySpace
from torch_edl.events import (
    CheckpointNotWritten,
    CheckpointWritten,
    Event,
    MoveDelayed,
    OutputReady,
)
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

# Upper bound on the checkpoints that one master takes.
_CHECKPOINTS_OF_A_MASTER = 1 << 32


@dataclass(frozen=True)
class CutTaken:
    """The servers are sealed, and the checkpoint ``saved`` contains all that they acknowledged."""

    saved: Saved
    servers: tuple[int, ...]
    """Incarnations of the sealed servers, in the order of shards."""


@dataclass
class CheckpointAttempt:
    """A checkpoint that is being taken."""

    kind: str
    """``periodic``, ``best``, ``final`` or ``cut``."""
    servers: tuple[int, ...] = ()
    """Incarnations of the servers that write it, in the order of shards; empty if a worker does."""
    commit: CommitLocal | None = None
    """The commit of what a worker wrote; None before the worker has written."""


class FinalOutput:
    """The file of ``--output``: the exported model, or the merged predictions of all tasks."""

    def __init__(self, config: JobConfig) -> None:
        self._parts = config.checkpoint.parts
        self._path = config.checkpoint.output if config.trains or self._parts else ""
        self._writing = self._done = False
        self.stopped = False
        """True if the job is to stop: it writes no output."""

    @property
    def written(self) -> bool:
        """True if no output remains to be written."""
        return self._done or self.stopped or not self._path

    def restart(self, *, written: bool = False) -> None:
        """Require the output again unless it is ``written``, and ignore the one in progress."""
        self._writing, self._done = False, written

    def write(self, model: Path | None, tasks: int) -> list[WriteOutput | MergePredictions]:
        """Return the action that writes the output; empty if it was returned before.

        Args:
            model: the checkpoint to export; None before it is written.
            tasks: number of tasks whose predictions are merged.
        """
        if self.written or self._writing or not (model or self._parts):
            return []
        self._writing = True
        if model is None:
            return [MergePredictions(Path(self._parts), Path(self._path), tasks)]
        return [WriteOutput(model, Path(self._path))]

    def apply(self, event: OutputWritten) -> list[OutputReady | Failure]:
        """Record that the output was written, or why not."""
        what = "predictions" if self._parts else "model"
        if event.error:
            text = f"--output {self._path}: the {what} cannot be written: {event.error}"
            if self._parts:
                text += f"; what each task has predicted is in {self._parts}"
            return [Failure(text)]
        if not self._writing:
            return []
        self._writing, self._done = False, True
        return [OutputReady(what=what, path=str(self._path))]


class CheckpointManager:
    """Checkpoints during training; at the end a flush, the final checkpoint and the output.

    One checkpoint is taken at a time: a periodic one every ``every`` steps, a final one if a
    checkpoint directory or an output is set, and a cut when the model moves to other servers.
    Events of an earlier incarnation of the model are ignored.

    Args:
        folder: folder of the job, for checkpoints of a job without a checkpoint directory.
        resumed: the checkpoint to resume from.
    """

    def __init__(
        self, config: JobConfig, *, folder: Path, resumed: Saved | None, best: BestCheckpoint
    ) -> None:
        self.temporary = folder / "final"
        """Folder of the final models of a job without a checkpoint directory."""
        self.root = self._folder = Path(config.checkpoint.dir or self.temporary)
        """Folder of the checkpoints of the current training."""
        self._keeps_final = False  # see keep_final
        self.newest = resumed
        """Newest complete checkpoint; None before the first."""
        self.best = best
        self.final: Saved | None = None
        """Checkpoint of the whole training; None before it is written."""
        self.named = str(resumed.path) if resumed is not None else ""
        """Path of the checkpoint to restore after a loss, perhaps one that a script's ring wrote;
        empty before the first."""
        self._job, self._config = config.name, config.checkpoint
        self._load = config.checkpoint.load
        self.output = FinalOutput(config)
        self._schedule = CheckpointSchedule(config)
        self._incarnation = 0
        self._trains = config.trains
        self._needs_flush = config.trains and config.train.mode == "sync"
        self._flushed = False  # no push waits for its quorum
        self._flushing = False
        self._master = self._taken = 0  # number of this master, and of its checkpoints
        self._actions: list[Effect] = []
        self._attempt: CheckpointAttempt | None = None  # the checkpoint that is being taken
        self._reset()

    def _reset(self) -> None:
        self.final = None
        self._attempt = None
        self._schedule.continue_after(self.newest.manifest.steps if self.newest else 0)
        self._flushed = self._flushing = False
        self.output.restart()

    @property
    def complete(self) -> bool:
        """True if no checkpoint or output remains to be written."""
        return (self.final is not None or not self._wants_final) and self.output.written

    @property
    def _wants_final(self) -> bool:
        kept = self._config.dir or self._config.output or self._keeps_final
        return self._trains and bool(kept)

    def keep_final(self) -> None:
        """Require a final checkpoint of this training even if the job has no checkpoint directory:
        processes that start later may need the model."""
        self._keeps_final = True

    @property
    def restore_from(self) -> str:
        """Path that a new incarnation of the model loads; empty without one."""
        return self.named or self._load

    @property
    def values_only(self) -> bool:
        """True if :attr:`restore_from` is another job's model, whose watermarks do not apply."""
        return not self.named

    @property
    def shown(self) -> str:
        """Checkpoint that the status reports; empty for a temporary one."""
        return "" if self._is_temporary(self.named) else self.named

    def _is_temporary(self, checkpoint: str) -> bool:
        return Path(checkpoint).is_relative_to(self.temporary)

    def may_begin(self, now: float) -> bool:
        """Return whether no checkpoint is being taken, and the pause after a failure is over."""
        return self._attempt is None and not self._schedule.is_paused(now)

    def is_due(self, steps: int, *, settled: bool) -> bool:
        """Return whether a periodic or the final checkpoint is due.

        Args:
            steps: minibatches done, including those of running tasks.
            settled: all training is done and applied.
        """
        if settled:
            return self.final is None and self._wants_final
        return self._schedule.is_due(steps)

    def take_actions(self) -> list[Effect]:
        actions, self._actions = self._actions, []
        return actions

    def settle(self, cluster: pb.Cluster, *, trained: bool) -> bool:
        """Return whether all training so far is applied: the training is over or the next epoch
        waits (``trained``) and, in sync mode, the servers were flushed."""
        self._incarnation = cluster.incarnation
        if not trained:
            self._flushed = False
        if not (trained and self._needs_flush and cluster.servers) or self._flushed:
            return trained
        if not self._flushing:
            self._flushing = True
            self._actions.append(Flush(cluster.servers, cluster.incarnation, self._job))
        return False

    def take(
        self,
        cluster: pb.Cluster,
        progress: Watermarks,
        manifest: Manifest,
        space: AnySpace,
        *,
        steps: int,
        settled: bool,
        moves: bool = False,
        best: bool = False,
    ) -> Path | None:
        """Begin a checkpoint that is due. Returns the folder in which a worker is to write the
        model; None if the servers write it.

        Args:
            manifest: manifest without the fields that are known only after the write.
            moves: the checkpoint is the cut of a move to other servers.
            best: the model is the best one so far; the manifest has its metrics.
        """
        kind = "cut" if moves else "final" if settled else "best" if best else "periodic"
        self._taken += 1
        servers = tuple(server.incarnation for server in cluster.servers)
        self._attempt = CheckpointAttempt(kind, servers)
        if kind in ("periodic", "best"):
            self._schedule.continue_after(steps)
        if not servers:
            return self.root / f".snapshot-{self._master}-{self._taken}"
        self._actions.append(
            SaveServers(
                cluster.servers,
                cluster.incarnation,
                progress,
                manifest,
                space,
                self.root,
                # Not a clock: that of an earlier master's machine may be ahead.
                move=self._master * _CHECKPOINTS_OF_A_MASTER + self._taken if moves else 0,
                restored=self.named,
            )
        )
        return None

    @property
    def running(self) -> bool:
        """True while a checkpoint is being taken."""
        return self._attempt is not None

    def moved(self, cut: Saved, incarnation: int) -> None:
        """Record that new servers restore the cut under a new incarnation of the model."""
        self._incarnation = incarnation
        self._flushed = self._flushing = False
        self._prune(cut)

    def _prune(self, newest: Saved) -> None:
        keep = self._config.keep if self._config.dir else 1
        self._actions.append(Prune(newest.path, keep, self.best.path))

    def write_output(self, tasks: int) -> None:
        """Request the output, once: the final checkpoint, the best one, or the predictions of all
        ``tasks``."""
        model = (self.best.path or self.final.path) if self.final is not None else None
        self._actions += self.output.write(model, tasks)

    def snapshot_written(self, directory: Path, manifest: Manifest) -> None:
        commit = CommitLocal(directory, manifest, self._incarnation, self.root, restored=self.named)
        if self._attempt is not None:
            self._attempt.commit = commit
        self._actions.append(commit)

    def begin_training(self, number: int, newest: str, saved: Saved | None) -> None:
        """Begin the checkpoints of another training of a script. Only the first training begins
        with the model of ``--load``.

        Args:
            newest: newest checkpoint of the training; empty if there is none.
            saved: that checkpoint with its manifest, if the model is on servers; else None.
        """
        self.named, self.newest = newest, saved
        self._load = self._config.load if number == 1 else ""
        self.root, self._keeps_final = training_dir(self._folder, number), False
        self._reset()

    def written_by_ring(self, directory: str) -> list[CheckpointWritten]:
        """Record a checkpoint that a script's ring wrote, as the one to restore."""
        if directory == self.named:
            return []
        self.named = directory
        return [] if self._is_temporary(directory) else [CheckpointWritten(path=directory)]

    def promote(self) -> None:
        """Make the running checkpoint the final one: a leaving worker writes it."""
        if self._attempt is not None:
            self._attempt.kind = "final"

    def resume_at_end(self, total_steps: int) -> bool:
        """Make the newest checkpoint the final one if it holds all steps. Returns whether it is."""
        if self.newest is None or self.newest.manifest.steps != total_steps:
            return False
        self.final = self.newest
        return True

    def continued(self) -> None:
        """Require another final checkpoint and output: tasks were added after the end."""
        self.final = None
        self._flushed = False
        self.output.restart()

    def restore(self, incarnation: int) -> Saved | None:
        """Reset for a new incarnation of a lost model. Returns the checkpoint that it loads."""
        self._incarnation = incarnation
        self._reset()
        self._schedule.failures = 0  # failures of the old servers
        return self.newest

    def apply(self, event: EffectEvent, now: float) -> list[Event | Failure | CutTaken]:
        """Handle the result of an action. Returns the events that follow."""
        attempt = self._attempt
        match event:
            case CheckpointSaved() if attempt and event.incarnation == self._incarnation:
                return self._saved(event.saved, attempt)
            case CheckpointFailed() if attempt and event.incarnation == self._incarnation:
                return self._failed(event, attempt, now)
            case Flushed() if event.incarnation == self._incarnation:
                self._flushing, self._flushed = False, event.success
            case OutputWritten():
                return [*self.output.apply(event)]
        return []

    def _saved(self, saved: Saved, attempt: CheckpointAttempt) -> list[Event | Failure | CutTaken]:
        self._attempt, self._schedule.failures = None, 0
        self.newest, self.named = saved, str(saved.path)
        found: list[Event | Failure | CutTaken] = []
        if self._config.dir:
            found.append(CheckpointWritten(path=str(saved.path)))
        found += self.best.consider(saved)
        if attempt.kind == "cut":
            return [*found, CutTaken(saved, attempt.servers)]
        # Only after the new checkpoint is the one to restore.
        self._prune(saved)
        if attempt.kind == "final":
            self.final = saved
        return found

    def _failed(
        self, event: CheckpointFailed, attempt: CheckpointAttempt, now: float
    ) -> list[Event | Failure | CutTaken]:
        self._attempt, error = None, event.error
        self._schedule.retry(now, early=attempt.kind == "cut" and event.early)
        if attempt.kind == "cut":
            return [] if event.early else [MoveDelayed(error=error)]
        if attempt.kind == "periodic":
            self._schedule.next = 0
        else:
            self._schedule.failures += 1
            if self._schedule.failures >= ATTEMPTS:
                return [Failure(f"the trained model cannot be saved in {self.root}: {error}")]
        return [CheckpointNotWritten(error=error)]

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        attempt = self._attempt
        commit = attempt.commit if attempt is not None else None
        return {
            "newest": self.named,
            "load": self._load,
            "best": str(self.best.path or ""),
            "incarnation": self._incarnation,
            "running": attempt.kind if attempt is not None else "",
            "by_worker": attempt is not None and not attempt.servers,
            "commit": [str(commit.directory), commit.manifest.to_json()] if commit else None,
            "next": self._schedule.next,
            "final": self.final is not None,
            "flushed": self._flushed,
            "written": self.output.written,
            "stopped": self.output.stopped,
            "failures": self._schedule.failures,
            "root": str(self.root),
            "keeps_final": self._keeps_final,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """Restore what :meth:`to_state` returned; :attr:`newest` is that on the disk.

        Work that an earlier master began and did not record as done begins again: a flush, the
        output, the commit of a worker's files, and a checkpoint of servers that it had suspended.
        """
        if self.newest is None:
            self.named = state["newest"]
        self._load, self._keeps_final = state["load"], state["keeps_final"]
        self.root = Path(state["root"])
        self._incarnation = state["incarnation"]
        self._schedule.next, self._schedule.failures = state["next"], state["failures"]
        self._flushed = state["flushed"]
        self.output.restart(written=state["written"])
        self.output.stopped = state["stopped"]
        if state["by_worker"]:  # the worker has the task, or has written its files
            self._attempt = CheckpointAttempt(state["running"])
        elif state["running"] == "periodic":
            self._schedule.next = 0
        if state["commit"] is not None:
            directory, manifest = state["commit"]
            self.snapshot_written(Path(directory), Manifest.from_json(manifest))
        if state["final"] and self.newest is not None:
            self.final = self.newest

    def begin_master(self, number: int, cluster: pb.Cluster | None) -> None:
        """Set the number of this master, which keeps its snapshot folders and moves apart from
        earlier ones, and release servers that the checkpoint of an earlier master suspended."""
        self._master = number
        if cluster is not None and cluster.servers:
            self._actions.append(Release(cluster.servers, self._job))

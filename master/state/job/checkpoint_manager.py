"""Checkpoints of a job: when one is due, the newest, and the output at the end. Pure."""

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
    Flushed,
    Note,
    OutputWritten,
    Prune,
    Release,
    Saved,
    SaveServers,
)
from master.state.job.best_checkpoint import BestCheckpoint
from master.state.job.checkpoint_schedule import (
    AttemptNumbers,
    CheckpointAttempt,
    CheckpointSchedule,
)
from master.state.job.final_output import FinalOutput
from master.state.job.quorum_flush import QuorumFlush
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.data.stream_space import AnySpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True)
class CutTaken:
    """The servers are sealed, and the checkpoint ``saved`` contains all that they acknowledged."""

    saved: Saved
    servers: tuple[int, ...]
    """Incarnations of the sealed servers, in the order of shards."""


class CheckpointManager:
    """Checkpoints during training; at the end a flush, the final checkpoint and the output.

    One checkpoint is taken at a time: a periodic one every ``every`` steps, a final one if a
    checkpoint directory or an output is set, and a cut when the model moves to other servers.
    Events of an earlier incarnation of the model are ignored.

    Args:
        folder: folder of the job; receives final checkpoints and cuts without a checkpoint
            directory.
        resumed: the checkpoint to resume from.
        best: receives each checkpoint that is written.
    """

    def __init__(
        self, config: JobConfig, *, folder: Path, resumed: Saved | None, best: BestCheckpoint
    ) -> None:
        self._temporary = folder / "final"
        self.root = Path(config.checkpoint.dir) if config.checkpoint.dir else self._temporary
        """Checkpoint directory, or a temporary folder of the job without one."""
        self.newest = resumed
        """Newest complete checkpoint; None before the first."""
        self.best = best
        self.final: Saved | None = None
        """Checkpoint of the whole training; None before it is written."""
        self.named = str(resumed.path) if resumed is not None else ""
        """Path of the checkpoint to restore after a loss; empty before the first. That of a
        script's ring has been read by its members only."""
        self._config = config.checkpoint
        self._job = config.name
        self._trains = config.trains
        self.output = FinalOutput(config)
        self._flush = QuorumFlush(config)
        self._schedule = CheckpointSchedule(config)
        self._numbers = AttemptNumbers()
        self._incarnation = 0
        self._actions: list[Effect] = []
        self._attempt: CheckpointAttempt | None = None  # the checkpoint that is being taken
        self._reset()

    def _reset(self) -> None:
        self.final = None
        self._attempt = None
        self._schedule.continue_after(self.newest.manifest.steps if self.newest else 0)
        self._flush.restart()
        self.output.restart()

    # ---- queries ----

    @property
    def complete(self) -> bool:
        """True if no checkpoint or output remains to be written."""
        wanted = self._trains and (self._config.dir or self._config.output)
        return (self.final is not None or not wanted) and self.output.written

    @property
    def restore_from(self) -> str:
        """Path that a new incarnation of the model loads; empty for a new model."""
        return self.named or self._config.load

    @property
    def values_only(self) -> bool:
        """True if :attr:`restore_from` is another job's model, whose watermarks do not apply
        here."""
        return not self.named

    @property
    def shown(self) -> str:
        """Checkpoint that the status reports; empty for a temporary one."""
        return "" if Path(self.named).parent == self._temporary else self.named

    def due(self, steps: int, *, settled: bool, now: float, best: bool = False) -> bool:
        """Return whether :meth:`take` is to be called now.

        Args:
            steps: minibatches done, including those of running tasks.
            settled: all training is done and applied.
            best: the model is the best one so far.
        """
        if self._attempt is not None or self._schedule.is_paused(now):
            return False
        if best:
            return True
        if settled:
            return self.final is None and bool(self._config.dir or self._config.output)
        return self._schedule.is_due(steps)

    # ---- what happens ----

    def take_actions(self) -> list[Effect]:
        """Return the actions that were requested since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def stop(self) -> None:
        """Prepare the end of a stopping job: a final checkpoint, but no output."""
        self.output.stop()

    def settle(self, cluster: pb.Cluster, *, trained: bool) -> bool:
        """Return whether all training so far is applied. In sync mode, the servers are flushed
        first.

        Args:
            trained: nothing is trained now: the training is over, or the next epoch waits.
        """
        self._incarnation = cluster.incarnation
        if not trained:
            self._flush.reset()
        if not trained or self._flush.done or not cluster.servers:
            return trained
        self._actions += self._flush.ask(cluster)
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
        """Begin a checkpoint that is due.

        Args:
            progress: watermarks of what is done.
            manifest: manifest without the fields that are known only after the write.
            moves: the checkpoint is the cut of a move to other servers.
            best: the model is the best one so far; the manifest has its metrics.

        Returns:
            The folder in which a worker is to write the model, if there are no servers; None
            otherwise.
        """
        final = settled and self.final is None
        kind = "cut" if moves else "final" if final else "best" if best else "periodic"
        self._attempt = CheckpointAttempt(
            kind,
            by_worker=not cluster.servers,
            servers=tuple(server.incarnation for server in cluster.servers),
        )
        if kind in ("periodic", "best"):
            self._schedule.continue_after(steps)
        if not cluster.servers:
            return self.root / f".snapshot-{self._numbers.next_snapshot()}"
        self._actions.append(
            SaveServers(
                cluster.servers,
                cluster.incarnation,
                progress,
                manifest,
                space,
                self.root,
                move=self._numbers.next_move() if moves else 0,
                restored=self.named,
            )
        )
        return None

    @property
    def running(self) -> bool:
        """True while a checkpoint is being taken."""
        return self._attempt is not None

    def may_cut(self, now: float) -> bool:
        """Return whether a cut can begin: no checkpoint is running, and the retry pause is over."""
        return self._attempt is None and not self._schedule.is_paused(now)

    def moved(self, cut: Saved, incarnation: int) -> None:
        """Record that new servers restore the cut under a new incarnation of the model."""
        self._incarnation = incarnation
        self._flush.restart()
        self._prune(cut)

    def _prune(self, newest: Saved) -> None:
        keep = self._config.keep if self._config.dir else 1
        self._actions.append(Prune(newest.path, keep, self.best.path))

    def write_output(self) -> None:
        """Request the export of the final checkpoint, or of the best one, once."""
        if self.final is not None:
            self._actions += self.output.export(self.best.path or self.final.path)

    def merge(self, tasks: int) -> None:
        """Request the merge of the predictions of all ``tasks``, once."""
        self._actions += self.output.merge(tasks)

    def snapshot_written(self, directory: Path, manifest: Manifest) -> None:
        """Request the commit of a model that a worker wrote."""
        commit = CommitLocal(directory, manifest, self._incarnation, self.root, restored=self.named)
        if self._attempt is not None:
            self._attempt.commit = commit
        self._actions.append(commit)

    def written_by_ring(self, directory: str) -> list[Note]:
        """Record a checkpoint that a script's ring wrote; it becomes the one to restore."""
        if directory == self.named:
            return []
        self.named = directory
        return [Note("info", f"checkpoint {directory}")]

    def promote(self) -> None:
        """Make a running checkpoint the final one: a leaving worker writes it."""
        if self._attempt is not None:
            self._attempt.kind = "final"

    def resume_at_end(self, total_steps: int) -> bool:
        """Return whether the newest checkpoint already holds all steps; if so, it is the final
        one."""
        if self.newest is None or self.newest.manifest.steps != total_steps:
            return False
        self._finish(self.newest)
        return True

    def continued(self) -> None:
        """Require another final checkpoint and output: tasks were added after the end."""
        self.final = None
        self._flush.reset()
        self.output.reset()

    def restore(self, incarnation: int) -> Saved | None:
        """Reset for a new incarnation of a lost model. Returns the newest checkpoint, which it
        loads."""
        self._incarnation = incarnation
        self._reset()
        self._schedule.failures = 0  # failures of the old servers
        return self.newest

    def apply(self, event: EffectEvent, now: float) -> list[Note | Failure | CutTaken]:
        """Handle the result of an action. Returns the events that follow."""
        attempt = self._attempt
        match event:
            case CheckpointSaved() if attempt and event.incarnation == self._incarnation:
                return self._saved(event.saved, attempt)
            case CheckpointFailed() if attempt and event.incarnation == self._incarnation:
                return self._failed(event, attempt, now)
            case Flushed() if event.incarnation == self._incarnation:
                self._flush.apply(event)
            case OutputWritten():
                return [*self.output.apply(event)]
        return []

    def _saved(self, saved: Saved, attempt: CheckpointAttempt) -> list[Note | Failure | CutTaken]:
        self._attempt, self._schedule.failures = None, 0
        self.newest, self.named = saved, str(saved.path)
        notes = [Note("info", f"checkpoint {saved.path}")] if self._config.dir else []
        notes += self.best.consider(saved)
        if attempt.kind == "cut":
            return [*notes, CutTaken(saved, attempt.servers)]
        # Only after the new checkpoint is the one to restore.
        self._prune(saved)
        if attempt.kind == "final":
            self._finish(saved)
        return [*notes]

    def _failed(
        self, event: CheckpointFailed, attempt: CheckpointAttempt, now: float
    ) -> list[Note | Failure | CutTaken]:
        self._attempt, error = None, event.error
        self._schedule.retry(now, early=attempt.kind == "cut" and event.early)
        if attempt.kind == "cut":
            text = f"the parameter servers stay for now, the next attempt follows: {error}"
            return [] if event.early else [Note("warning", text)]
        if attempt.kind == "periodic":
            self._schedule.hasten()
        elif self._schedule.count_failure():
            return [Failure(f"the trained model cannot be saved in {self.root}: {error}")]
        return [Note("warning", f"checkpoint not written, the next attempt follows: {error}")]

    def _finish(self, saved: Saved) -> None:
        self.final = saved
        if not self.best.wanted:
            self.write_output()

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """Return the state for a restarted master, as JSON values."""
        attempt = self._attempt or CheckpointAttempt()
        commit = attempt.commit
        return {
            "newest": self.named,
            "best": str(self.best.path or ""),
            "incarnation": self._incarnation,
            "running": attempt.kind,
            "by_worker": attempt.by_worker,
            "commit": [str(commit.directory), commit.manifest.to_json()] if commit else None,
            "next": self._schedule.next,
            "final": self.final is not None,
            "flushed": self._flush.done,
            "written": self.output.written,
            "stopped": self.output.stopped,
            "failures": self._schedule.failures,
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """Restore what :meth:`to_state` returned; :attr:`newest` is the newest checkpoint on the
        disk.

        Work that an earlier master began and did not record as done begins again: a flush, the
        output, the commit of a worker's files, and a checkpoint of servers that it had suspended.
        """
        if self.newest is None:
            self.named = state["newest"]
        self._incarnation = state["incarnation"]
        self._schedule.next, self._schedule.failures = state["next"], state["failures"]
        self._flush.done = state["flushed"]
        self.output.written, self.output.stopped = state["written"], state["stopped"]
        if state["by_worker"]:  # the worker has the task, or has written its files
            self._attempt = CheckpointAttempt(state["running"], by_worker=True)
        elif state["running"] == "periodic":
            self._schedule.next = 0
        if state["commit"] is not None:
            directory, manifest = state["commit"]
            self.snapshot_written(Path(directory), Manifest.from_json(manifest))
        if state["final"] and self.newest is not None:
            self._finish(self.newest)

    def release(self, cluster: pb.Cluster) -> None:
        """Request that the servers admit pushes that an earlier master's checkpoint suspended."""
        self._actions.append(Release(cluster.servers, self._job))

    def begin_master(self, number: int) -> None:
        """Set the number of this master, which keeps its snapshot folders and moves apart from
        those of earlier masters."""
        self._numbers = AttemptNumbers(number)

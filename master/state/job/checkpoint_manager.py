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
    Flush,
    Flushed,
    MergePredictions,
    Note,
    OutputWritten,
    Prune,
    Release,
    Saved,
    SaveServers,
    WriteOutput,
)
from master.state.job.best_checkpoint import BestCheckpoint
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.data.stream_space import AnySpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

_RETRY_S = 5.0
_EARLY_RETRY_S = 0.5
_FINAL_ATTEMPTS = 3
# Upper bound on the moves that one master attempts.
_MOVES_OF_A_MASTER = 1 << 32


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
        self._every = config.checkpoint.every if config.checkpoint.dir else 0
        self._flushes = config.trains and config.train.mode == "sync"
        self._parts = config.checkpoint.parts
        self._output = config.checkpoint.output if config.trains or self._parts else ""
        self._incarnation = 0
        self._actions: list[Effect] = []
        self._running = ""  # "periodic", "best", "final" or "cut" while one is taken
        self._cut_servers: tuple[int, ...] = ()
        self._not_before = 0.0
        self._failures = 0
        self._snapshots = 0
        self._moves = 0
        self._life = 0  # of the master
        self._by_worker = False  # a worker writes the running checkpoint
        self._commit: CommitLocal | None = None  # in progress
        self._stopped = False
        self._reset()

    def _reset(self) -> None:
        self.final = None
        self._running = ""
        self._commit = None
        self._next = self._after(self.newest.manifest.steps if self.newest is not None else 0)
        self._flushed = not self._flushes
        self._flushing = self._writing = False
        self._written = self._stopped or not self._output

    def _after(self, steps: int) -> int:
        return (steps // self._every + 1) * self._every if self._every else 0

    # ---- queries ----

    @property
    def complete(self) -> bool:
        """True if no checkpoint or output remains to be written."""
        wanted = self._trains and (self._config.dir or self._config.output)
        return (self.final is not None or not wanted) and self._written

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
        if self._running or now < self._not_before:
            return False
        if best:
            return True
        if settled:
            return self.final is None and bool(self._config.dir or self._config.output)
        return bool(self._every) and steps >= self._next

    # ---- what happens ----

    def take_actions(self) -> list[Effect]:
        """Return the actions that were requested since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def stop(self) -> None:
        """Prepare the end of a stopping job: a final checkpoint, but no output."""
        self._stopped = self._written = True

    def settle(self, cluster: pb.Cluster, *, trained: bool) -> bool:
        """Return whether all training so far is applied. In sync mode, the servers are flushed
        first.

        Args:
            trained: nothing is trained now: the training is over, or the next epoch waits.
        """
        self._incarnation = cluster.incarnation
        if not trained:
            self._flushed = not self._flushes
        if not trained or self._flushed or not cluster.servers:
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
        self._running = "cut" if moves else "final" if final else "best" if best else "periodic"
        self._by_worker = not cluster.servers
        if self._running in ("periodic", "best"):
            self._next = self._after(steps)
        if cluster.servers:
            servers, of, move = cluster.servers, cluster.incarnation, 0
            self._cut_servers = tuple(server.incarnation for server in servers)
            if moves:
                self._moves += 1
                # Not a clock: the clock of an earlier master's machine may be ahead.
                move = self._life * _MOVES_OF_A_MASTER + self._moves
            self._actions.append(
                SaveServers(
                    servers,
                    of,
                    progress,
                    manifest,
                    space,
                    self.root,
                    move=move,
                    restored=self.named,
                )
            )
            return None
        self._snapshots += 1
        return self.root / f".snapshot-{self._life}-{self._snapshots}"

    @property
    def running(self) -> bool:
        """True while a checkpoint is being taken."""
        return bool(self._running)

    def may_cut(self, now: float) -> bool:
        """Return whether a cut can begin: no checkpoint is running, and the retry pause is over."""
        return not self._running and now >= self._not_before

    def moved(self, cut: Saved, incarnation: int) -> None:
        """Record that new servers restore the cut under a new incarnation of the model."""
        self._incarnation = incarnation
        self._flushed, self._flushing = not self._flushes, False
        self._prune(cut)

    def _prune(self, newest: Saved) -> None:
        keep = self._config.keep if self._config.dir else 1
        self._actions.append(Prune(newest.path, keep, self.best.path))

    def write_output(self) -> None:
        """Request the export of the final checkpoint, or of the best one, once."""
        if self.final is not None and not self._written and not self._writing:
            self._writing = True
            model = self.best.path or self.final.path
            self._actions.append(WriteOutput(model, Path(self._output)))

    def merge(self, tasks: int) -> None:
        """Request the merge of the predictions of all ``tasks``, once."""
        if self._parts and not self._written and not self._writing:
            self._writing = True
            parts, output = Path(self._parts), Path(self._output)
            self._actions.append(MergePredictions(parts, output, tasks))

    def snapshot_written(self, directory: Path, manifest: Manifest) -> None:
        """Request the commit of a model that a worker wrote."""
        self._commit = CommitLocal(
            directory, manifest, self._incarnation, self.root, restored=self.named
        )
        self._actions.append(self._commit)

    def written_by_ring(self, directory: str) -> list[Note]:
        """Record a checkpoint that a script's ring wrote; it becomes the one to restore."""
        if directory == self.named:
            return []
        self.named = directory
        return [Note("info", f"checkpoint {directory}")]

    def promote(self) -> None:
        """Make a running checkpoint the final one: a leaving worker writes it."""
        self._running = self._running and "final"

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
        self._flushed = not self._flushes
        self._written = self._stopped or not self._output

    def restore(self, incarnation: int) -> Saved | None:
        """Reset for a new incarnation of a lost model. Returns the newest checkpoint, which it
        loads."""
        self._incarnation = incarnation
        self._reset()
        self._failures = 0  # failures of the old servers
        return self.newest

    def apply(self, event: EffectEvent, now: float) -> list[Note | Failure | CutTaken]:
        """Handle the result of an action. Returns the events that follow."""
        match event:
            case CheckpointSaved() if self._running and event.incarnation == self._incarnation:
                return self._saved(event.saved)
            case CheckpointFailed() if self._running and event.incarnation == self._incarnation:
                return self._failed(event, now)
            case Flushed() if event.incarnation == self._incarnation:
                self._flushing, self._flushed = False, event.success
            case OutputWritten() if event.error:
                what = "predictions" if self._parts else "model"
                text = f"--output {self._output}: the {what} cannot be written: {event.error}"
                if self._parts:
                    text += f"; what each task has predicted is in {self._parts}"
                return [Failure(text)]
            case OutputWritten() if self._writing:
                self._writing, self._written = False, True
                what = "predictions" if self._parts else "model"
                return [Note("info", f"{what} written to {self._output}")]
        return []

    def _saved(self, saved: Saved) -> list[Note | Failure | CutTaken]:
        was, self._running, self._failures = self._running, "", 0
        self._commit = None
        self.newest, self.named = saved, str(saved.path)
        notes = [Note("info", f"checkpoint {saved.path}")] if self._config.dir else []
        notes += self.best.consider(saved)
        if was == "cut":
            return [*notes, CutTaken(saved, self._cut_servers)]
        # Only after the new checkpoint is the one to restore.
        self._prune(saved)
        if was == "final":
            self._finish(saved)
        return [*notes]

    def _failed(self, event: CheckpointFailed, now: float) -> list[Note | Failure | CutTaken]:
        was, self._running, error = self._running, "", event.error
        self._commit = None
        self._not_before = now + _RETRY_S
        if was == "cut":
            if event.early:
                self._not_before = now + _EARLY_RETRY_S
                return []
            text = f"the parameter servers stay for now, the next attempt follows: {error}"
            return [Note("warning", text)]
        if was in ("final", "best"):
            self._failures += 1
            if self._failures >= _FINAL_ATTEMPTS:
                return [Failure(f"the trained model cannot be saved in {self.root}: {error}")]
        elif self._every:
            self._next = 0  # after the pause, not at the next multiple
        return [Note("warning", f"checkpoint not written, the next attempt follows: {error}")]

    def _finish(self, saved: Saved) -> None:
        self.final = saved
        if not self.best.wanted:
            self.write_output()

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """Return the state for a restarted master, as JSON values."""
        commit = self._commit
        return {
            "newest": self.named,
            "best": str(self.best.path or ""),
            "incarnation": self._incarnation,
            "running": self._running,
            "by_worker": self._by_worker,
            "commit": [str(commit.directory), commit.manifest.to_json()] if commit else None,
            "next": self._next,
            "final": self.final is not None,
            "flushed": self._flushed,
            "written": self._written,
            "stopped": self._stopped,
            "failures": self._failures,
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
        self._next, self._failures = state["next"], state["failures"]
        self._flushed, self._written = state["flushed"], state["written"]
        self._stopped = state["stopped"]
        if state["commit"] is not None:
            directory, manifest = state["commit"]
            self._running = state["running"]
            self.snapshot_written(Path(directory), Manifest.from_json(manifest))
        elif state["by_worker"]:  # the worker has the task
            self._running = state["running"]
        elif state["running"] == "periodic":
            self._next = 0
        if state["final"] and self.newest is not None:
            self._finish(self.newest)

    def release(self, cluster: pb.Cluster) -> None:
        """Request that the servers admit pushes that an earlier master's checkpoint suspended."""
        self._actions.append(Release(cluster.servers, self._job))

    def begin_life(self, life: int) -> None:
        """Set the number of this master, which keeps its snapshot folders and moves apart from
        those of earlier masters."""
        self._life = life

"""The checkpoints of a job: when one is due, which one is the newest, and the output at the end.
Pure.
"""

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
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.data.stream_space import AnySpace
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

_RETRY_S = 5.0
_EARLY_RETRY_S = 0.5
_FINAL_ATTEMPTS = 3
# More attempts to move a model than a master makes.
_MOVES_OF_A_MASTER = 1 << 32


@dataclass(frozen=True)
class CutTaken:
    """The servers are sealed, and all that they acknowledged is in the cut."""

    saved: Saved
    servers: tuple[int, ...]
    """Their incarnations, in the order of shards."""


class CheckpointManager:
    """Checkpoints while training continues; at the end a flush, the last checkpoint, the output.

    Checkpoints are taken one at a time: one is due each ``every`` steps, a final one at the end if
    there is a directory for checkpoints or the model is wanted, and a cut when the model moves to
    other servers. Events of an earlier incarnation of the model are ignored.

    Args:
        folder: of the job; without a directory for checkpoints the final one and cuts go there.
        resumed: the checkpoint to continue from.
    """

    def __init__(self, config: JobConfig, *, folder: Path, resumed: Saved | None) -> None:
        self._temporary = folder / "final"
        self.root = Path(config.checkpoint.dir) if config.checkpoint.dir else self._temporary
        self.newest = resumed
        self.final: Saved | None = None
        self.named = str(resumed.path) if resumed is not None else ""
        """The checkpoint to go back to; that of a script's ring only its members have read."""
        self._config = config.checkpoint
        self._job = config.name
        self._trains = config.trains
        self._every = config.checkpoint.every if config.checkpoint.dir else 0
        self._flushes = config.trains and config.train.mode == "sync"
        self._parts = config.checkpoint.parts
        self._output = config.checkpoint.output if config.trains or self._parts else ""
        self._incarnation = 0
        self._actions: list[Effect] = []
        self._running = ""  # "periodic", "final" or "cut" while one is taken
        self._cut_servers: tuple[int, ...] = ()
        self._not_before = 0.0
        self._failures = 0
        self._snapshots = 0
        self._moves = 0
        self._life = 0  # of the master
        self._by_worker = False  # a worker writes what is taken
        self._commit: CommitLocal | None = None  # under way
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
        """Nothing is left to be saved or written."""
        wanted = self._trains and (self._config.dir or self._config.output)
        return (self.final is not None or not wanted) and self._written

    @property
    def restore_from(self) -> str:
        """What a new incarnation of the model loads; empty: nothing."""
        return self.named or self._config.load

    @property
    def values_only(self) -> bool:
        """Whether :attr:`restore_from` is the model of another job, whose tasks are not ours."""
        return not self.named

    @property
    def shown(self) -> str:
        """The checkpoint of which the status tells."""
        return "" if Path(self.named).parent == self._temporary else self.named

    def due(self, steps: int, *, settled: bool, now: float) -> bool:
        """Whether to :meth:`take` a checkpoint now.

        Args:
            steps: minibatches done, those of running tasks included.
            settled: all training is done and applied.
        """
        if self._running or now < self._not_before:
            return False
        if settled:
            return self.final is None and bool(self._config.dir or self._config.output)
        return bool(self._every) and steps >= self._next

    # ---- what happens ----

    def take_actions(self) -> list[Effect]:
        """What is to be done since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def stop(self) -> None:
        """The job is to end before all is trained: there is a final checkpoint, but no output."""
        self._stopped = self._written = True

    def settle(self, cluster: pb.Cluster, *, trained: bool) -> bool:
        """Whether all training is done and applied; in sync mode servers hold some of it back."""
        self._incarnation = cluster.incarnation
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
    ) -> Path | None:
        """Begins a checkpoint that is due.

        Args:
            progress: what is done.
            manifest: without what is known when the checkpoint is written.
            moves: it is the cut with which the model moves to other servers.

        Returns:
            The folder to which a worker is to write the model, if only workers have it.
        """
        self._running = "cut" if moves else "final" if settled else "periodic"
        self._by_worker = not cluster.servers
        if self._running == "periodic":
            self._next = self._after(steps)
        if cluster.servers:
            servers, of, move = cluster.servers, cluster.incarnation, 0
            self._cut_servers = tuple(server.incarnation for server in servers)
            if moves:
                self._moves += 1
                # Of no clock: that of the machine of an earlier master may be ahead of ours.
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
        """A checkpoint is taken now."""
        return bool(self._running)

    def may_cut(self, now: float) -> bool:
        """Whether no checkpoint is taken now, and none has just failed."""
        return not self._running and now >= self._not_before

    def moved(self, cut: Saved, incarnation: int) -> None:
        """The model moved to other servers, which restore the cut."""
        self._incarnation = incarnation
        self._flushed, self._flushing = not self._flushes, False
        self._prune(cut)

    def _prune(self, newest: Saved) -> None:
        keep = self._config.keep if self._config.dir else 1
        self._actions.append(Prune(newest.path, keep))

    def merge(self, tasks: int) -> None:
        """The predictions of so many tasks are all made."""
        if self._parts and not self._written and not self._writing:
            self._writing = True
            parts, output = Path(self._parts), Path(self._output)
            self._actions.append(MergePredictions(parts, output, tasks))

    def snapshot_written(self, directory: Path, manifest: Manifest) -> None:
        """A worker wrote its model."""
        self._commit = CommitLocal(
            directory, manifest, self._incarnation, self.root, restored=self.named
        )
        self._actions.append(self._commit)

    def written_by_ring(self, directory: str) -> list[Note]:
        """The ring of a script wrote a checkpoint: the job goes back to it from now on."""
        if directory == self.named:
            return []
        self.named = directory
        return [Note("info", f"checkpoint {directory}")]

    def promote(self) -> None:
        """A worker that leaves writes the checkpoint that runs: the final one."""
        self._running = self._running and "final"

    def resume_at_end(self, total_steps: int) -> bool:
        """Whether the newest checkpoint holds everything already: then it is the final one."""
        if self.newest is None or self.newest.manifest.steps != total_steps:
            return False
        self._finish(self.newest)
        return True

    def continued(self) -> None:
        """There is more to train, after all was trained and saved."""
        self.final = None
        self._flushed = not self._flushes
        self._written = self._stopped or not self._output

    def restore(self, incarnation: int) -> Saved | None:
        """The model is lost and goes back to the newest checkpoint, which is returned."""
        self._incarnation = incarnation
        self._reset()
        self._failures = 0  # those of servers that are gone
        return self.newest

    def apply(self, event: EffectEvent, now: float) -> list[Note | Failure | CutTaken]:
        """Takes what came of an action."""
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
        if was == "cut":
            return [*notes, CutTaken(saved, self._cut_servers)]
        # Not before it is the one to go back to.
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
        if was == "final":
            self._failures += 1
            if self._failures >= _FINAL_ATTEMPTS:
                return [Failure(f"the trained model cannot be saved in {self.root}: {error}")]
        elif self._every:
            self._next = 0  # as soon as the pause is over, not only at the next multiple
        return [Note("warning", f"checkpoint not written, the next attempt follows: {error}")]

    def _finish(self, saved: Saved) -> None:
        self.final = saved
        if not self._written and not self._writing:
            self._writing = True
            self._actions.append(WriteOutput(saved.path, Path(self._output)))

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it."""
        commit = self._commit
        return {
            "newest": self.named,
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
        """The inverse of :meth:`to_state`, given the newest checkpoint that is on the disk.

        What an earlier master had begun and not noted as done is begun again: a flush, the output,
        the commit of what a worker wrote, and a checkpoint of servers, whose hold it let go of.
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
        elif state["by_worker"]:  # it has the task
            self._running = state["running"]
        elif state["running"] == "periodic":
            self._next = 0
        if state["final"] and self.newest is not None:
            self._finish(self.newest)

    def release(self, cluster: pb.Cluster) -> None:
        """The servers no longer hold back what an earlier master meant to save."""
        self._actions.append(Release(cluster.servers, self._job))

    def begin_life(self, life: int) -> None:
        """No snapshot of this master has the folder of one that an earlier master asked for, and
        its moves have higher numbers."""
        self._life = life

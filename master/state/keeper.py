"""Keeps the model: what has to be flushed, saved and written, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from master.state.actions import CommitLocal, Effect, Flush, MakeFolder, SaveServers, WriteOutput
from master.state.saves import Contents, Saved, Saves
from torch_edl.config import JobConfig
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

Tell = Callable[[str, str, float], None]
"""(level, text, now)"""


class Keeper:
    """Checkpoints while training goes on; at the end a flush, the last checkpoint, the output.

    What comes back about an earlier life of the servers is not heard.

    Args:
        folder: of the job, for what is temporary.
        tell: notes an event.
        fail: ends the job: (error, now).
    """

    def __init__(
        self,
        config: JobConfig,
        *,
        folder: Path,
        resumed: Saved | None,
        tell: Tell,
        fail: Callable[[str, float], None],
    ) -> None:
        self.saves = Saves(config.checkpoint, temporary=folder / "final", newest=resumed)
        self._job = config.name
        self._trains = config.trains
        self._flushes = self._trains and config.train.mode == "sync"
        self._dir = config.checkpoint.dir
        self._load = config.checkpoint.load
        self._output = config.checkpoint.output if self._trains else ""
        self._tell = tell
        self._fail = fail
        self._incarnation = 0
        self._flushed = not self._flushes
        self._flushing = False
        self._written = not self._output
        self._writing = False
        self._snapshots = 0

    @property
    def complete(self) -> bool:
        """Nothing is left to be saved or written."""
        return not self._trains or (self.saves.complete and self._written)

    def stop(self) -> None:
        """The job is to end before all is trained: there is a last checkpoint, but no output."""
        self._written = True

    @property
    def newest(self) -> Saved | None:
        """The checkpoint that the job goes back to."""
        return self.saves.newest

    @property
    def restore_from(self) -> str:
        """What a new life of the model loads; empty: nothing."""
        newest = self.saves.newest
        return str(newest.path) if newest is not None else self._load

    @property
    def values_only(self) -> bool:
        """Whether that is the model of another job, whose tasks are not ours."""
        return self.saves.newest is None

    def settle(self, cluster: pb.Cluster, *, trained: bool) -> tuple[bool, list[Effect]]:
        """Whether all training is done and applied; in sync mode servers hold some of it back."""
        self._incarnation = cluster.incarnation
        if not trained or self._flushed or not cluster.servers:
            return trained, []
        if self._flushing:
            return False, []
        self._flushing = True
        return False, [Flush(list(cluster.servers), cluster.incarnation, self._job)]

    def save(
        self,
        cluster: pb.Cluster,
        progress: Callable[[], Watermarks],
        contents: Callable[[], Contents],
        *,
        steps: int,
        settled: bool,
        now: float,
    ) -> list[Effect]:
        """What is due now.

        Args:
            progress: tells what is done.
            contents: tells what the manifest says besides.
            steps: minibatches done, running tasks included.
        """
        effects: list[Effect] = []
        if self.saves.due(steps, settled=settled, now=now):
            if cluster.servers:
                effects.append(
                    SaveServers(
                        list(cluster.servers),
                        cluster.incarnation,
                        progress(),
                        contents(),
                        self.saves.root,
                    )
                )
            else:
                self._snapshots += 1
                directory = self.saves.root / f".snapshot-{self._snapshots}"
                effects.append(MakeFolder(directory, cluster.incarnation))
        if self.saves.final is not None and not self._written and not self._writing:
            self._writing = True
            effects.append(WriteOutput(self.saves.final.path, Path(self._output)))
        return effects

    def snapshot_written(
        self, base: Watermarks, request: pb.ReportTaskRequest, to: str, contents: Contents
    ) -> Effect:
        """The worker of the strategy ``local`` wrote its model to the folder ``to``.

        Args:
            base: what was done before it began.
        """
        return CommitLocal(
            Path(to),
            dict(zip(request.files, request.sizes, strict=True)),
            Watermarks.union([base, Watermarks.from_proto(request.watermarks)]),
            request.version,
            self._incarnation,
            contents,
            self.saves.root,
        )

    def expects_snapshot(self, incarnation: int) -> bool:
        """A folder for a snapshot is still of use."""
        return incarnation == self._incarnation and bool(self.saves.running)

    def saved(self, saved: Saved, incarnation: int, now: float) -> None:
        """A checkpoint is complete."""
        if incarnation == self._incarnation and self.saves.running:
            self.saves.done(saved)
            if self._dir:
                self._tell("info", f"checkpoint {saved.path}", now)

    def save_failed(self, error: str, incarnation: int, now: float) -> None:
        """A checkpoint came to nothing."""
        if incarnation != self._incarnation or not self.saves.running:
            return
        if self.saves.failed(now):
            self._fail(f"the trained model cannot be saved in {self.saves.root}: {error}", now)
        else:
            self._tell("warning", f"no checkpoint this time, trying again later: {error}", now)

    def flushed(self, incarnation: int, *, success: bool) -> None:
        """The servers applied everything, or it has to be asked again."""
        if incarnation == self._incarnation:
            self._flushing = False
            self._flushed = success

    def written(self, error: str, now: float) -> None:
        """The trained model is written, or not."""
        if error:
            self._fail(f"--output {self._output}: the model cannot be written: {error}", now)
        elif self._writing:
            self._writing = False
            self._written = True
            self._tell("info", f"model written to {self._output}", now)

    def restore(self, incarnation: int) -> Saved | None:
        """The model is lost and goes back to the newest checkpoint, which is returned."""
        self._incarnation = incarnation
        self._flushed = not self._flushes
        self._flushing = self._writing = False
        self._written = not self._output
        return self.saves.restore()

"""What the job wants done (actions), and what came of it (events). Pure.

An action holds everything that it needs: :mod:`master.runtime` executes it without the lock of the
job, and hands the event back to :meth:`master.state.job.job.Job.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.data.stream_space import AnySpace
from torch_edl.data.task_space import Shard
from torch_edl.processes.spec import ProcessRefused, ProcessRuns, ProcessSpec, ProcessWaits
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def progress(self) -> Watermarks:
        """Which tasks the checkpoint holds."""
        return self.manifest.watermarks.copy()


# ---- actions ----


@dataclass(frozen=True)
class Start:
    """Start a process."""

    spec: ProcessSpec


@dataclass(frozen=True)
class Stop:
    """Ask a process to end, and end the process by force after the grace."""

    role: str
    id: int
    grace_s: float


@dataclass(frozen=True)
class Become:
    """The process of a worker is that of a server from now on; the worker hears it by heartbeat."""

    worker: int
    server: int


@dataclass(frozen=True)
class KeepPlan:
    """Keep the state: tasks were cut from streams, which may not be leased before."""

    life: int
    end: int
    """One after the last of them."""


@dataclass(frozen=True)
class PlanKept:
    """The state with these tasks is kept."""

    life: int
    end: int


@dataclass(frozen=True)
class SaveServers:
    """Take a checkpoint of all servers."""

    servers: Sequence[pb.Server]
    incarnation: int
    """Of the model."""
    progress: Watermarks
    """What was done before the checkpoint began."""
    manifest: Manifest
    """Without what is known when the servers have written."""
    space: AnySpace
    root: Path
    move: int = 0
    """The model moves to other servers: these accept no push after it. The number is above those of
    all earlier attempts, whichever master made them; 0: the model stays."""
    restored: str = ""
    """The checkpoint that the model was restored from; empty: none."""


@dataclass(frozen=True)
class CommitLocal:
    """Make a checkpoint of the files that a worker wrote."""

    directory: Path
    manifest: Manifest
    incarnation: int
    root: Path
    restored: str = ""
    """The checkpoint that the model was restored from; empty: none."""


@dataclass(frozen=True)
class Flush:
    """Have the servers apply the pushes that wait for their quorum."""

    servers: Sequence[pb.Server]
    incarnation: int
    """Of the model."""
    job: str


@dataclass(frozen=True)
class Release:
    """Have the servers admit all pushes: an earlier master may have held them back."""

    servers: Sequence[pb.Server]
    job: str


@dataclass(frozen=True)
class WriteOutput:
    """Write the trained model."""

    checkpoint: Path
    output: Path


@dataclass(frozen=True)
class MergePredictions:
    """Write the predictions of all tasks in the order of the records."""

    parts: Path
    output: Path
    tasks: int


@dataclass(frozen=True)
class Prune:
    """Remove the checkpoints before ``newest``, so that ``keep`` are left."""

    newest: Path
    keep: int


@dataclass(frozen=True)
class Remove:
    """Remove a folder of this job that nobody needs any more."""

    directory: Path


@dataclass(frozen=True)
class KeepPreprocessing:
    """Write the fitted preprocessing to the file of the job, which is part of every checkpoint."""

    content: bytes


Effect = (
    SaveServers
    | CommitLocal
    | Flush
    | Release
    | WriteOutput
    | MergePredictions
    | Prune
    | Remove
    | KeepPreprocessing
)
"""Actions that take long; the thread of :mod:`master.runtime.effects` executes them in order."""
Action = Start | Stop | Become | KeepPlan | Effect


# ---- events ----


@dataclass(frozen=True)
class Started:
    """A process runs."""

    role: str
    id: int
    pid: int
    since: int = 0
    """See :func:`torch_edl.processes.adoption.start_time`."""


@dataclass(frozen=True)
class NotStarted:
    """A process could not be started."""

    role: str
    id: int
    error: str


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is complete."""

    saved: Saved
    incarnation: int


@dataclass(frozen=True)
class CheckpointFailed:
    """A checkpoint came to nothing."""

    error: str
    incarnation: int
    early: bool = False
    """Workers have not told the servers yet what they hold."""


@dataclass(frozen=True)
class Flushed:
    """The servers applied everything, or have to be asked again."""

    incarnation: int
    success: bool


@dataclass(frozen=True)
class OutputWritten:
    """The trained model is written; not, where there is an error."""

    error: str = ""


@dataclass(frozen=True)
class PreprocessingKept:
    """The fitted preprocessing is written; not, where there is an error."""

    error: str = ""


@dataclass(frozen=True)
class DataScanned:
    """The sources of the data are counted."""

    shards: Mapping[str, Sequence[Shard]]
    """``train``, ``eval`` and ``predict`` to their shards."""
    damaged: int = 0
    """Records that were left out."""
    error: str = ""
    """Why not all could be counted; it matters unless the model file brings its own source."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> DataScanned:
        """The inverse of ``dataclasses.asdict``."""
        shards = {key: [Shard(**shard) for shard in of] for key, of in fields["shards"].items()}
        return cls(**{**fields, "shards": shards})


EffectEvent = CheckpointSaved | CheckpointFailed | Flushed | OutputWritten | PreprocessingKept
"""What came of an :data:`Effect`."""
Progress = ProcessWaits | ProcessRuns | ProcessRefused
"""How far a process has come that was asked for."""
ActionEvent = Started | NotStarted | Progress | PlanKept | EffectEvent
"""What came of an :data:`Action`."""


@dataclass(frozen=True)
class Note:
    """A part of the job has something to say to the user."""

    level: str
    """``info``, ``warning`` or ``error``."""
    text: str
    traceback: str = ""


@dataclass(frozen=True)
class Failure:
    """A part of the job cannot continue: the job fails."""

    error: str
    traceback: str = ""
    usage: bool = False

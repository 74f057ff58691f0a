"""Actions that the job requests, and events that report their results. Pure.

An action is self-contained: :mod:`master.runtime` executes it without the lock of the job, and
passes the resulting event to :meth:`~master.state.job.job.ManagedJob.apply`. An ``incarnation`` is
that of the model, ``restored`` the checkpoint that it was restored from; empty if there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.data.stream_space import AnySpace
from torch_edl.data.task_space import Shard
from torch_edl.events import MachineJoined, MachineLeft
from torch_edl.processes.launcher import (
    ProcessFails,
    ProcessNotStarted,
    ProcessRefused,
    ProcessRuns,
    ProcessSpec,
    ProcessWaits,
)
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def progress(self) -> Watermarks:
        """Watermarks of the tasks whose training the checkpoint contains."""
        return self.manifest.watermarks.copy()


# ---- actions ----


@dataclass(frozen=True)
class Start:
    spec: ProcessSpec


@dataclass(frozen=True)
class Stop:
    """Terminate a process: SIGTERM, then SIGKILL after ``grace_s``."""

    role: str
    id: int
    grace_s: float
    """Seconds between SIGTERM and SIGKILL; 0 kills at once."""


@dataclass(frozen=True)
class KeepPlan:
    """Store the state: tasks were cut from streams and may be leased only once they are stored."""

    life: int
    """Number of the plan's life, which changes when the stream is restored."""
    end: int
    """End of the stored plan: one above its last task id."""


@dataclass(frozen=True)
class PlanKept:
    """The state that contains the tasks of a :class:`KeepPlan` is stored."""

    life: int
    end: int


@dataclass(frozen=True)
class SaveServers:
    """Take a checkpoint of all servers."""

    servers: Sequence[pb.Server]
    """All servers, in the order of shards."""
    incarnation: int
    progress: Watermarks
    """Watermarks of the tasks that were done before the checkpoint began."""
    manifest: Manifest
    """Manifest without the fields that are known only once the servers have written."""
    space: AnySpace
    root: Path
    """Checkpoint directory."""
    move: int = 0
    """Number of the move to other servers, above all earlier attempts of any master; the servers
    accept no push after the checkpoint. 0: an ordinary checkpoint."""
    restored: str = ""


@dataclass(frozen=True)
class CommitLocal:
    """Commit the files that a worker wrote to a folder as a checkpoint."""

    directory: Path
    manifest: Manifest
    incarnation: int
    root: Path
    """Checkpoint directory."""
    restored: str = ""


@dataclass(frozen=True)
class Flush:
    """Make the servers apply the pushes that wait for their quorum."""

    servers: Sequence[pb.Server]
    incarnation: int
    job: str


@dataclass(frozen=True)
class Release:
    """Make the servers admit all pushes: an earlier master may have suspended them."""

    servers: Sequence[pb.Server]
    job: str


@dataclass(frozen=True)
class WriteOutput:
    """Export the trained model to the output path."""

    checkpoint: Path
    output: Path


@dataclass(frozen=True)
class MergePredictions:
    """Merge the predictions of all tasks into the output, in the order of the records."""

    parts: Path
    """Folder with the predictions of each task."""
    output: Path
    tasks: int


@dataclass(frozen=True)
class Prune:
    """Remove checkpoints older than ``newest``, so that ``keep`` remain."""

    newest: Path
    keep: int
    """Number of checkpoints to keep, including ``newest``."""
    best: Path | None = None
    """Checkpoint that is kept too: the best by ``--keep-best``."""


@dataclass(frozen=True)
class Remove:
    """Remove a folder of this job that is no longer needed."""

    directory: Path


@dataclass(frozen=True)
class KeepPreprocessing:
    """Write the fitted preprocessing to the job's file, which every checkpoint includes."""

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
"""Long-running actions; the thread of :mod:`master.runtime.effects` executes them in order."""
Action = Start | Stop | KeepPlan | Effect


# ---- events ----


@dataclass(frozen=True)
class CheckpointSaved:
    saved: Saved
    incarnation: int


@dataclass(frozen=True)
class CheckpointFailed:
    error: str
    incarnation: int
    early: bool = False
    """True if no worker has described the model to the servers yet; the move is tried again
    soon."""


@dataclass(frozen=True)
class Flushed:
    """The servers applied all pushes if ``success``; otherwise the flush is repeated."""

    incarnation: int
    success: bool


@dataclass(frozen=True)
class OutputWritten:
    """The output was written, or failed with ``error``."""

    error: str = ""


@dataclass(frozen=True)
class PreprocessingKept:
    """The fitted preprocessing was written, or failed with ``error``."""

    error: str = ""


@dataclass(frozen=True)
class DataScanned:
    """The records of the data sources were counted."""

    shards: Mapping[str, Sequence[Shard]]
    """Shards of ``train``, ``eval`` and ``predict``."""
    damaged: int = 0
    """Number of damaged records that were skipped."""
    error: str = ""
    """Reason why a source could not be counted; ignored if the model file has its own source."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> DataScanned:
        """Return the event whose ``dataclasses.asdict`` is ``fields``."""
        shards = {key: [Shard(**shard) for shard in of] for key, of in fields["shards"].items()}
        return cls(**{**fields, "shards": shards})


@dataclass(frozen=True)
class StreamGrown:
    """The brokers reported the offsets of their partitions."""

    offsets: Mapping[str, tuple[int, int]]
    """For each partition, its first offset and one above its last."""


EffectEvent = CheckpointSaved | CheckpointFailed | Flushed | OutputWritten | PreprocessingKept
"""Results of an :data:`Effect`."""
Progress = ProcessWaits | ProcessRuns | ProcessFails | ProcessRefused
"""Scheduling states of a process that was requested."""
ActionEvent = ProcessNotStarted | Progress | MachineJoined | MachineLeft | PlanKept | EffectEvent
"""Results of an :data:`Action`, and changes of machines."""


@dataclass(frozen=True)
class Failure:
    """An error that makes the job fail."""

    error: str
    traceback: str = ""
    usage: bool = False
    """True if the user made the error; the exit code is 2 then."""

"""What the job wants done in the world and takes long; :mod:`master.runtime.effects` does it.

Each holds all that is needed for it: it is done in another thread, while the job goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from master.state.processes import Start, Stop
from master.state.saves import Contents
from torch_edl.tables.watermarks import Watermarks


@dataclass(frozen=True)
class SaveServers:
    """Take a checkpoint of all servers."""

    addresses: Sequence[str]
    incarnation: int
    progress: Watermarks
    """What was done before it began."""
    contents: Contents
    root: Path


@dataclass(frozen=True)
class MakeFolder:
    """Make the folder into which the worker of the strategy ``local`` writes."""

    directory: Path
    incarnation: int


@dataclass(frozen=True)
class CommitLocal:
    """Make a checkpoint of what the worker of the strategy ``local`` wrote."""

    directory: Path
    files: dict[str, int]
    progress: Watermarks
    version: int
    incarnation: int
    contents: Contents
    root: Path


@dataclass(frozen=True)
class Flush:
    """Have the servers apply what waits for its quorum."""

    addresses: Sequence[str]
    incarnation: int
    job: str


@dataclass(frozen=True)
class WriteOutput:
    """Write the trained model."""

    checkpoint: Path
    output: Path


Effect = SaveServers | MakeFolder | CommitLocal | Flush | WriteOutput
Action = Start | Stop | Effect

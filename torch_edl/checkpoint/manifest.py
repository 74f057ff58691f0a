"""What a checkpoint holds and which records are in it: the content of ``manifest.json``. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from torch_edl.errors import CheckpointError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import pserver_pb2 as pb

FORMAT = 2
"""Counts the incompatible changes of what is in the files of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The model of one process, written to a folder; a checkpoint once it has a manifest."""

    files: dict[str, int]
    """File name to size in bytes."""
    watermarks: Watermarks
    """Which records are in the model."""
    version: int
    """Updates that the model has had."""

    def to_proto(self) -> pb.Snapshot:
        """The message."""
        watermarks = self.watermarks.to_proto()
        return pb.Snapshot(files=self.files, watermarks=watermarks, version=self.version)

    @classmethod
    def from_proto(cls, message: pb.Snapshot) -> Snapshot:
        """What :meth:`to_proto` wrote."""
        return cls(
            files=dict(sorted(message.files.items())),
            watermarks=Watermarks.from_proto(message.watermarks),
            version=message.version,
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a checkpoint."""

    job: str
    run: str = ""
    """The run of the job that wrote the files; empty: unknown."""
    strategy: str
    """The strategy that wrote the files: ``ps``, ``local`` or ``allreduce``."""
    steps: int
    """Minibatches trained on."""
    shards: int = 1
    """Number of processes that wrote a shard."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    """The records of training tasks that are in the model."""
    files: dict[str, int] = field(default_factory=dict)
    """File name to size in bytes."""
    versions: tuple[int, ...] = ()
    """Version of each shard."""
    data: dict[str, Any] = field(default_factory=dict)
    """What fixes the meaning of a task id: shards, records_per_task, batch size, seed, ..."""

    @property
    def on_servers(self) -> bool:
        """Parameter servers wrote the files, with the state of their kernels; otherwise one worker
        did, with the state of its own optimizer."""
        return self.strategy == "ps"

    @property
    def has_tables(self) -> bool:
        """Rows of embedding tables are in it."""
        return any(".table-" in name for name in self.files)

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        raw = {"format": FORMAT, **asdict(self)}
        raw["retired_before"] = self.watermarks.retired_before
        raw["watermarks"] = {str(task): offset for task, offset in self.watermarks.offsets.items()}
        return json.dumps(raw, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The inverse of :meth:`to_json`.

        Raises:
            CheckpointError: the files are in the format of another version of torch-edl.
            ValueError, TypeError, KeyError, AttributeError: the text is not that of a manifest.
        """
        raw = json.loads(text)
        found = raw.pop("format", 1)
        if found != FORMAT:
            raise CheckpointError(
                f"checkpoint format {found}: this version of torch-edl reads format {FORMAT}; "
                "export the model with the version that wrote the checkpoint, and pass the export "
                "to --load"
            )
        offsets = {int(task): int(offset) for task, offset in raw["watermarks"].items()}
        raw["watermarks"] = Watermarks(raw.pop("retired_before"), offsets)
        raw["versions"] = tuple(raw["versions"])
        return cls(**raw)

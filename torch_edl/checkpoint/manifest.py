"""The manifest of a checkpoint, ``manifest.json``: its files and the records in its model. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from torch_edl.errors import CheckpointError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.typed_json import Count, Range, convert, parse
from torch_edl.wire import pserver_pb2 as pb

FORMAT = 2
"""Version of the format of checkpoint files, increased by incompatible changes."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The model of one process, written to a folder; a checkpoint once it has a manifest."""

    files: dict[str, int]
    """File sizes in bytes by name."""
    watermarks: Watermarks
    """Watermarks of the records in the model."""
    version: int
    """Number of updates of the model."""

    def to_proto(self) -> pb.Snapshot:
        """Return the snapshot as a message."""
        watermarks = self.watermarks.to_proto()
        return pb.Snapshot(files=self.files, watermarks=watermarks, version=self.version)

    @classmethod
    def from_proto(cls, message: pb.Snapshot) -> Snapshot:
        """Return the snapshot of a message of :meth:`to_proto`."""
        return cls(
            files=dict(sorted(message.files.items())),
            watermarks=Watermarks.from_proto(message.watermarks),
            version=message.version,
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a checkpoint."""

    job: str
    """Name of the job."""
    run: str = ""
    """Run of the job that wrote the files; empty if unknown."""
    strategy: str
    """Strategy that wrote the files: ``ps``, ``local`` or ``allreduce``."""
    steps: Count
    """Number of minibatches in the model."""
    shards: Annotated[int, Range(1, 1 << 31)] = 1
    """Number of processes that wrote a shard."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    """Watermarks of the training records in the model."""
    files: dict[str, Count] = field(default_factory=dict)
    """File sizes in bytes by name."""
    versions: tuple[Count, ...] = ()
    """Version (number of updates) of each shard."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the evaluation of the model, if ``--keep-best`` chose it; empty otherwise."""
    data: dict[str, Any] = field(default_factory=dict)
    """Values that determine which records a task id means: shards, records_per_task, batch size,
    seed, ..."""

    @property
    def on_servers(self) -> bool:
        """True if parameter servers wrote the files, with the state of their kernels; False if a
        worker did, with the state of its optimizer."""
        return self.strategy == "ps"

    @property
    def has_tables(self) -> bool:
        """True if the files include rows of embedding tables."""
        return any(".table-" in name for name in self.files)

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        raw = {"format": FORMAT, **asdict(self)}
        raw["retired_before"] = self.watermarks.retired_before
        raw["watermarks"] = {str(task): offset for task, offset in self.watermarks.offsets.items()}
        return json.dumps(raw, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Return the manifest of a text of :meth:`to_json`.

        Raises:
            CheckpointError: the files are in the format of another version of torch-edl.
            ValueError: the text is not a manifest.
        """
        raw = parse(text, dict[str, Any], finite=False)  # a metric may be NaN
        found = raw.pop("format", 1)
        if found != FORMAT:
            raise CheckpointError(
                f"checkpoint format {found}: this version of torch-edl reads format {FORMAT}; "
                "export the model with the version that wrote the checkpoint, and pass the export "
                "to --load"
            )
        marks = {
            "retired_before": raw.pop("retired_before", None),
            "offsets": raw.get("watermarks"),
        }
        return convert({**raw, "watermarks": marks}, cls)

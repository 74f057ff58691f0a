"""What a checkpoint holds and which records are in it: the content of ``manifest.json``. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds, and which records are in it."""

    job: str
    strategy: str
    """``ps`` or ``local``: whose files these are."""
    steps: int
    """Minibatches trained on."""
    shards: int
    """Servers that wrote it."""
    retired_before: int
    """Every training task below this id is in the model whole."""
    watermarks: dict[int, int] = field(default_factory=dict)
    """Task id to the offset of the first record that is not in the model."""
    files: dict[str, int] = field(default_factory=dict)
    """File name to size in bytes."""
    versions: tuple[int, ...] = ()
    """Version of each server."""
    data: dict[str, Any] = field(default_factory=dict)
    """What fixes the meaning of a task id: shards, records_per_task, batch size, seed, ..."""

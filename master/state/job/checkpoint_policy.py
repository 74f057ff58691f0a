"""Which checkpoints a job takes, and which one is the best. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from master.state.actions import Saved
from torch_edl.config import JobConfig
from torch_edl.config.training import Objective
from torch_edl.events import BestCheckpointFound
from torch_edl.wire import master_pb2 as pb

_RETRY_S = 5.0
_EARLY_RETRY_S = 0.5
ATTEMPTS = 3
"""Number of failures in a row of a checkpoint that the job needs, after which the job fails."""


class CheckpointSchedule:
    """The next periodic checkpoint, and the pause after one that failed."""

    def __init__(self, config: JobConfig) -> None:
        self._every = config.checkpoint.every if config.checkpoint.dir else 0
        self.next = 0
        """Minibatches at which the next periodic checkpoint is due; 0: as soon as possible."""
        self.failures = 0
        """Number of checkpoints in a row that the job needs and that failed."""
        self._not_before = 0.0

    def continue_after(self, steps: int) -> None:
        """Schedule the first multiple of the interval above ``steps``."""
        self.next = (steps // self._every + 1) * self._every if self._every else 0

    def is_due(self, steps: int) -> bool:
        return bool(self._every) and steps >= self.next

    def is_paused(self, now: float) -> bool:
        return now < self._not_before

    def retry(self, now: float, *, early: bool = False) -> None:
        """Begin the pause after a failure; a short one if the servers have no model yet."""
        self._not_before = now + (_EARLY_RETRY_S if early else _RETRY_S)


class BestCheckpoint:
    """The checkpoint of the epoch with the best value of ``--keep-best``.

    Only a checkpoint that is complete, with its metrics in the manifest, is the best: a job that
    loses its model or its master between the evaluation and the checkpoint repeats what is missing.

    Args:
        option: value of ``--keep-best``; empty if no checkpoint is the best.
        found: checkpoints of the job from earlier masters and from the job that it resumes.
    """

    def __init__(self, option: str, found: Iterable[Saved] = ()) -> None:
        self.saved: Saved | None = None
        """The best checkpoint; None before the first."""
        self._objective = Objective.of(option) if option else None
        for each in found:
            self.consider(each)

    @property
    def wanted(self) -> bool:
        """True if the job keeps its best checkpoint."""
        return self._objective is not None

    @property
    def path(self) -> Path | None:
        """Folder of the best checkpoint; None before the first."""
        return self.saved.path if self.saved is not None else None

    def is_improved_by(self, metrics: Mapping[str, float]) -> bool:
        """Return whether a model with these metrics, if finite, is better than the best one."""
        objective = self._objective
        if objective is None:
            return False
        value = metrics.get(objective.metric, math.nan)
        # A manifest holds finite metrics only.
        if not math.isfinite(value):
            return False
        return self.saved is None or objective.is_better(value, self._value(self.saved))

    def consider(self, saved: Saved) -> list[BestCheckpointFound]:
        """Replace the best checkpoint by a better one."""
        if not self.is_improved_by(saved.manifest.metrics):
            return []
        self.saved = saved
        found = BestCheckpointFound(
            metric=self._name, value=self._value(saved), steps=saved.manifest.steps
        )
        return [found]

    def describe(self, status: pb.GetStatusResponse, *, is_temporary: bool) -> None:
        if self.saved is not None:
            status.best.metric, status.best.value = self._name, self._value(self.saved)
            status.best.steps = self.saved.manifest.steps
            status.best.checkpoint = "" if is_temporary else str(self.saved.path)

    @property
    def _name(self) -> str:
        assert self._objective is not None
        return self._objective.metric

    def _value(self, saved: Saved) -> float:
        return saved.manifest.metrics[self._name]

"""When to take checkpoints, which one is the newest, and what may be resumed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.data.identity import difference
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import Watermarks

_RETRY_S = 5.0
_FINAL_ATTEMPTS = 3


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def progress(self) -> Watermarks:
        """Which tasks it holds."""
        return self.manifest.watermarks.copy()


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a manifest says besides what a checkpoint holds."""

    job: str
    strategy: str
    data: Mapping[str, Any]
    """See :func:`identity`."""
    space: TaskSpace


def check_prefix(saved: Saved) -> None:
    """Raises UsageError unless the tasks of a checkpoint are the first ones, one after another."""
    progress = saved.progress
    started = {id for id in progress.offsets if id >= progress.retired_before}
    if started - {progress.retired_before}:
        raise UsageError(
            f"--resume {saved.path}: it was made with tasks in the hands of several workers, and "
            "--strategy allreduce takes the records in one order; use --strategy ps, or --load "
            "it to begin the data afresh"
        )


def nothing_left(config: JobConfig) -> str:
    """What to say where the checkpoint to go on from holds all the training."""
    more = "epochs=" if config.kind == "script" else "--epochs"
    if config.train.max_steps:
        more = "--epochs or --max-steps"
    return (
        "nothing is left to train: the checkpoint is of the end of the job; raise "
        f"{more} to go on from there"
    )


class Saves:
    """The checkpoints of a job, one at a time.

    One is due each ``every`` steps, and one at the end if there is a directory for checkpoints
    or the model is wanted; without a directory that one goes to ``temporary``.
    """

    def __init__(self, config: CheckpointConfig, *, temporary: Path, newest: Saved | None) -> None:
        self.root = Path(config.dir) if config.dir else temporary
        self.newest = newest
        self.final: Saved | None = None
        self.keep = config.keep
        self._every = config.every if config.dir else 0
        self._wanted = bool(config.dir or config.output)
        self._running = ""
        self._not_before = 0.0
        self._failures = 0
        self._next = 0
        self._resume(newest)

    def _resume(self, saved: Saved | None) -> None:
        steps = saved.manifest.steps if saved is not None else 0
        self._next = (steps // self._every + 1) * self._every if self._every else 0

    @property
    def complete(self) -> bool:
        """The last one is there, or none is wanted."""
        return self.final is not None or not self._wanted

    @property
    def running(self) -> str:
        """``periodic`` or ``final`` while one is taken."""
        return self._running

    def resumed_at_end(self, total_steps: int) -> bool:
        """The checkpoint that the job went on from holds everything already: it is the last."""
        if self.newest is None or self.newest.manifest.steps != total_steps:
            return False
        self.final = self.newest
        return True

    def due(self, steps: int, *, settled: bool, now: float) -> bool:
        """Whether to begin one now; it runs from here until :meth:`done` or :meth:`failed`.

        Args:
            settled: all training is done and applied.
        """
        if self._running or now < self._not_before or (self.complete and settled):
            return False
        if settled:
            self._running = "final"
        elif self._every and steps >= self._next:
            self._next = (steps // self._every + 1) * self._every
            self._running = "periodic"
        return bool(self._running)

    def done(self, saved: Saved) -> None:
        """The one that ran is complete."""
        if self._running == "final":
            self.final = saved
        self._running = ""
        self._failures = 0
        self.newest = saved

    def promote(self) -> None:
        """The one that runs is written by who leaves, and so is the last one."""
        self._running = self._running and "final"

    def failed(self, now: float) -> bool:
        """The one that ran came to nothing. Returns whether to give up: the last one, thrice."""
        was, self._running = self._running, ""
        self._not_before = now + _RETRY_S
        if was != "final":
            # Again as soon as that is over, not only at the next multiple.
            self._next = 0 if self._every else self._next
            return False
        self._failures += 1
        return self._failures >= _FINAL_ATTEMPTS

    def restore(self) -> Saved | None:
        """The model went back to the newest one, which is returned."""
        self._running = ""
        self.final = None
        self._resume(self.newest)
        return self.newest


def identity(config: JobConfig, shards: Sequence[Shard], files: str = "") -> dict[str, Any]:
    """What fixes the meaning of a task id: kept in manifests, compared on resume.

    Args:
        files: of a script, whose one shard is its dataset: digest of its data files.
    """
    made = {
        "shards": [[s.name, s.records] for s in shards],
        "records_per_task": config.records_per_task,
        "batch_size": config.data.batch_size,
        "local_steps": config.train.local_steps,
        "seed": config.train.seed,
        "shuffle": config.data.shuffle,
    }
    return made | {"files": files} if config.kind == "script" else made


# What others depend on comes first: it is the one to name.
_OPTIONS = {
    "batch_size": "--batch-size {}",
    "local_steps": "--local-steps {}",
    "records_per_task": "--records-per-task {}",
    "seed": "--seed {}",
    "shuffle": "shuffle {}",
}


def check_resume(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError, naming the first difference, unless task ids still mean the same."""
    if "files" in now:  # of a script, which gave them to its loader
        differs = difference(then, now)
    else:
        options = (key for key in _OPTIONS if then.get(key) != now[key])
        differs = next(((_OPTIONS[key].format(then.get(key)), now[key]) for key in options), None)
    if differs is not None:
        raise UsageError(
            f"--resume {path}: it was made with {differs[0]}, now it is {differs[1]}; use the "
            "same, or start afresh with another --checkpoint-dir"
        )
    before = dict(map(tuple, then.get("shards", [])))
    after = dict(map(tuple, now["shards"]))
    if list(before.items()) == list(after.items()):
        return
    for name in [*before, *after]:
        if before.get(name) != after.get(name):
            had = f"{before[name]} records" if name in before else "absent"
            has = f"{after[name]} records" if name in after else "absent"
            what = f"{name} was {had}, now it is {has}"
            break
    else:
        what = "the same files come in another order"
    raise UsageError(
        f"--resume {path}: the training data is not what it was made with: {what}; "
        "use the same data, or --load it to train on other data"
    )

"""The configuration of a job, as the command line makes it and every process reads it.

Plain keyword-only dataclasses: checked where they are made, sent as JSON, never pickled.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.experiment import Experiment

STRATEGIES = ("auto", "ps", "allreduce", "local")
SYNC_MODES = ("async", "sync")
NAN_POLICIES = ("stop", "skip")
JOB_KINDS = ("train", "evaluate", "predict", "script")

# An embedding of more elements than this goes to the parameter servers: 4M floats are 16 MB,
# which is where sending the dense gradient of a table costs more than sending its rows.
LARGE_EMBEDDING_ELEMENTS = 4_000_000


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the records are and how they are cut into tasks."""

    train: tuple[str, ...] = ()
    """Files or globs to train on."""
    eval: tuple[str, ...] = ()
    """Files or globs to evaluate on."""
    predict: tuple[str, ...] = ()
    """Files or globs to predict for."""
    format: str = "auto"
    """``auto`` looks at the suffix and the first bytes; else the name of a source."""
    batch_size: int = 64
    """Records per minibatch and worker."""
    records_per_task: int = 0
    """Records per task; 0 means 32 minibatches, rounded to whole windows of ``local_steps``."""
    epochs: int = 1
    """Passes over the training data."""
    shuffle: bool = True
    """Shuffle the order of tasks, and the records within a task, by (seed, epoch)."""
    skip_damaged: bool = False
    """Leave damaged records out and count them instead of stopping."""
    loader_workers: int = 0
    """Processes of the DataLoader, for a ``feed`` that returns a Dataset."""
    pin_memory: bool = False
    """Pin the batches of that DataLoader."""

    def __post_init__(self) -> None:
        _require(self.batch_size >= 1, f"--batch-size {self.batch_size}: must be 1 or more")
        _require(
            self.records_per_task >= 0,
            f"--records-per-task {self.records_per_task}: must be 1 or more (0 chooses)",
        )
        _require(self.epochs >= 1, f"--epochs {self.epochs}: must be 1 or more")
        _require(self.loader_workers >= 0, f"--loader-workers {self.loader_workers}: must be >= 0")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How gradients become parameters."""

    strategy: str = "auto"
    """``auto`` chooses from the model; ``ps``, ``allreduce`` and ``local`` are explicit."""
    mode: str = "async"
    """``async``: each push is applied at once; ``sync``: ``grads_to_wait`` pushes are averaged."""
    grads_to_wait: int = 1
    """In sync mode, how many pushes make one update."""
    staleness: int = 1
    """How many of its own pushes the parameters of a batch may lack; 0 is strictly in order.
    In sync mode also how many versions old an accepted gradient may be."""
    local_steps: int = 1
    """Delayed update: minibatches per push and pull."""
    learning_rate_by_staleness: bool = False
    """Divide the learning rate of a push by how many versions old its parameters were."""
    max_steps: int = 0
    """Stop after so many minibatches over all workers; 0 is no limit."""
    eval_every: int = 0
    """Evaluate each so many steps; 0 evaluates at the end only."""
    seed: int = 0
    """Seeds the model, the rows of embeddings, and the order of tasks and records."""
    on_nan: str = "stop"
    """A loss that is not finite: ``stop`` fails the job, ``skip`` leaves the minibatch out."""
    log_layers: str = ""
    """Glob over module names whose output statistics are logged while training."""
    large_embedding: int = LARGE_EMBEDDING_ELEMENTS
    """``nn.Embedding`` modules of more elements than this live on the servers."""

    def __post_init__(self) -> None:
        _require(
            self.strategy in STRATEGIES,
            f"--strategy {self.strategy}: choose one of {', '.join(STRATEGIES)}",
        )
        _require(self.mode in SYNC_MODES, f"--mode {self.mode}: choose async or sync")
        _require(self.grads_to_wait >= 1, f"--grads-to-wait {self.grads_to_wait}: must be >= 1")
        _require(
            self.mode == "sync" or self.grads_to_wait == 1,
            f"--grads-to-wait {self.grads_to_wait}: only --mode sync waits for gradients; "
            "add --mode sync",
        )
        _require(self.staleness >= 0, f"--staleness {self.staleness}: must be 0 or more")
        _require(self.local_steps >= 1, f"--local-steps {self.local_steps}: must be 1 or more")
        _require(self.max_steps >= 0, f"--max-steps {self.max_steps}: must be >= 0 (0: no limit)")
        _require(self.eval_every >= 0, f"--eval-every {self.eval_every}: must be 0 or more")
        _require(self.on_nan in NAN_POLICIES, f"--on-nan {self.on_nan}: choose stop or skip")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """How many processes of each kind."""

    min_workers: int = 1
    """Fewer than this and the job says that it is waiting."""
    max_workers: int = 1
    """Never more than this."""
    servers: int = 1
    """Parameter servers; the strategy ``local`` starts none."""
    worker_threads: int = 0
    """Torch threads of a worker; 0 divides the cores among the workers."""
    heartbeat_timeout_s: float = 30.0
    """A worker silent for so long is taken for lost."""
    task_timeout_s: float = 600.0
    """A worker that makes no step for so long loses its tasks and is replaced."""
    join_timeout_s: float = 600.0
    """A script: so long workers wait for the first ring."""
    max_task_failures: int = 3
    """Failures of the user's code on one task before the job fails."""

    def __post_init__(self) -> None:
        _require(self.min_workers >= 1, f"--workers {self.min_workers}: at least one is needed")
        _require(
            self.min_workers <= self.max_workers,
            f"--workers {self.min_workers}:{self.max_workers}: the minimum is above the maximum; "
            f"write {self.max_workers}:{self.min_workers}",
        )
        _require(self.servers >= 1, f"--ps {self.servers}: one at least, or --strategy local")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Where the model is kept."""

    dir: str = ""
    """Directory of the checkpoints; empty keeps none."""
    every: int = 0
    """Steps between checkpoints; 0 keeps only the last state."""
    keep: int = 3
    """How many checkpoints stay; the newest always does."""
    resume: bool = False
    """Go on from the newest checkpoint in ``dir``."""
    load: str = ""
    """An exported model or a checkpoint to start from (evaluate, predict, fine-tune)."""
    output: str = ""
    """Where the trained model (or the predictions) goes."""

    def __post_init__(self) -> None:
        _require(self.every >= 0, f"--checkpoint-every {self.every}: must be 0 or more")
        _require(self.keep >= 1, f"--keep-checkpoints {self.keep}: the newest one is always kept")
        _require(
            bool(self.dir) or not (self.every or self.resume),
            "--checkpoint-every and --resume need --checkpoint-dir DIR",
        )


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """Everything a process of the job must know; the same JSON for all of them."""

    name: str
    """Name of the job; also the name of its folder."""
    kind: str = "train"
    """``train``, ``evaluate`` or ``predict`` (a model file), or ``script`` (a training script)."""
    model_file: str
    """Absolute path of the model file, or of the script."""
    model_args: tuple[str, ...] = ()
    """What followed ``--`` on the command line: ``sys.argv[1:]`` of the model file."""
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tensorboard: str = ""
    """Directory for TensorBoard scalars; empty writes none."""
    experiment: Experiment | None = None
    """A script: what the agent that began the job runs, and all others must run."""

    def __post_init__(self) -> None:
        _require(self.kind in JOB_KINDS, f"job kind {self.kind}: choose one of {JOB_KINDS}")
        _require(
            bool(self.name)
            and all(c.isalnum() or c in "-_." for c in self.name)
            and not self.name.startswith("."),
            f"--job-name {self.name}: use letters, digits, '-', '_' and '.'",
        )

    @property
    def trains(self) -> bool:
        """Whether a model is trained, rather than used."""
        return self.kind in ("train", "script")

    @property
    def window(self) -> int:
        """Records of one push: ``local_steps`` minibatches. Tasks are cut into whole windows."""
        return self.data.batch_size * self.train.local_steps

    @property
    def records_per_task(self) -> int:
        """Records of a task, whole windows unless the user said otherwise."""
        if self.data.records_per_task:
            return self.data.records_per_task
        return max(1, 32 // self.train.local_steps) * self.window

    def to_json(self) -> str:
        """One JSON object; the inverse of :meth:`from_json`."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> JobConfig:
        """Reads what :meth:`to_json` wrote.

        Raises:
            UsageError: a field is unknown or has an illegal value.
        """
        parts = {
            "data": DataConfig,
            "train": TrainConfig,
            "cluster": ClusterConfig,
            "checkpoint": CheckpointConfig,
            "experiment": Experiment,
        }
        raw = json.loads(text)
        try:
            for name, part in parts.items():
                if raw[name] is not None:
                    raw[name] = part(**_tuples(raw[name]))
            return cls(**_tuples(raw))
        except (KeyError, TypeError) as error:
            raise UsageError(f"job configuration: {error}") from error


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}

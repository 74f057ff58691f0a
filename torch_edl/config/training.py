"""Configuration of the training: strategy, updates, and what to do about failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_edl.config.option import (
    Checked,
    Option,
    job_option,
    option,
    train_option,
    training_option,
)
from torch_edl.config.table_storage import MEMORY, folder_of
from torch_edl.errors import UsageError

SYNC_MODES = ("async", "sync")
FLOAT_DTYPES = ("fp32", "bf16", "fp16")
STORAGE_DTYPES = (*FLOAT_DTYPES, "int8")
# In the name of a metric: a lower value is better.
_LOWER = ("loss", "error", "mse", "mae")
_WAYS = ("", "min", "max")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
    """Strategy and updates of the training."""

    strategy: str = option(
        "auto",
        "--strategy NAME",
        "auto|ps|allreduce|local (default: auto, by the model)",
        Option(
            "--strategy NAME", "auto|ps|allreduce (default: auto, by the model)", kinds=("script",)
        ),
        group="model",
        choices=("auto", "ps", "allreduce", "local"),
    )
    large_embedding: int = job_option(
        # 4M floats are 16 MB; for larger tables, sending the dense gradient costs more than sending
        # rows.
        4_000_000,
        "--large-embedding N",
        "place embeddings above N elements on servers (default: 4e6)",
        group="model",
    )
    max_rows: int = training_option(
        0,
        "--max-rows N",
        "rows of a table without num_embeddings (default: no limit)",
        group="model",
        minimum=0,
    )
    """Row limit of tables without another bound; the least recently used rows are removed."""
    storage_dtype: str = training_option(
        "fp32",
        "--storage-dtype fp32|bf16|fp16|int8",
        "how tables keep rows that do not say it themselves",
        group="model",
        choices=STORAGE_DTYPES,
    )
    """Applies to tables of ``torch_edl.nn`` and to embeddings that become tables."""
    table_storage: str = job_option(
        MEMORY,
        "--table-storage memory|disk:DIR",
        "where tables keep rows that do not say it themselves",
        group="model",
    )
    """Applies to the same tables. The folder is on a local disk of each server."""
    seed: int = option(
        0,
        "--seed N",
        "seed of the model, the data order and new embedding rows",
        Option("--seed N", "seed of the data order", kinds=("script",)),
        group="model",
    )
    mode: str = train_option(
        "async",
        "--mode async|sync",
        "apply each push at once, or the average of several",
        choices=SYNC_MODES,
    )
    grads_to_wait: int = train_option(
        1,
        "--grads-to-wait N",
        "pushes averaged by --mode sync (default: MIN of --workers)",
        minimum=1,
    )
    staleness: int = training_option(
        0, "--staleness N", "pushes that may be in flight when the next batch is pulled", minimum=0
    )
    """0 for strict order. In ``sync`` mode, the age in versions of the oldest accepted gradient, by
    default 1."""
    local_steps: int = train_option(
        1, "--local-steps N", "minibatches per push (delayed update)", minimum=1
    )
    max_steps: int = train_option(
        0,
        "--max-steps N",
        "stop after N minibatches over all workers (default: no limit)",
        minimum=0,
    )
    eval_every: int = train_option(
        0,
        "--eval-every STEPS",
        "steps after which an evaluation is due (default: only at the end)",
        minimum=0,
    )
    eval_epochs: bool = train_option(
        False, "--eval-epochs", "evaluate at the end of each epoch, before the next one begins"
    )
    early_stop: str = train_option(
        "", "--early-stop METRIC:PATIENCE", "stop after PATIENCE epochs without a better METRIC"
    )
    """The metric is one of the evaluation. A lower value is better if the name contains loss or
    error, otherwise a higher one; ``METRIC:PATIENCE:min`` and ``:max`` select either."""
    keep_best: str = train_option(
        "",
        "--keep-best METRIC",
        "output and keep the model of the epoch with the best METRIC (default: the last)",
    )
    """The same metrics and rules as of :attr:`early_stop`: ``METRIC``, ``METRIC:min`` or
    ``METRIC:max``."""
    on_nan: str = training_option(
        "stop",
        "--on-nan stop|skip",
        "fail the job or skip the step if a loss is not finite",
        choices=("stop", "skip"),
    )
    """The loss of a minibatch in a model file; the gradient of an update in a script."""
    tf_function: bool = option(
        False,
        "--tf-function",
        "run steps of TensorFlow as graphs (default: eagerly)",
        kinds=("train", "evaluate", "predict"),
    )
    log_layers: str = train_option(
        "",
        "--log-layers PATTERN",
        "log output statistics of modules that match, as 'deep.*'",
        group="monitoring",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        folder_of(self.table_storage, "--table-storage")
        if self.early_stop:
            EarlyStop.of(self.early_stop)
        if self.keep_best:
            Objective.of(self.keep_best)
        if self.eval_every and self.evaluates_epochs:
            raise UsageError(
                f"--eval-every {self.eval_every}: {self.epochs_option} evaluates at the ends of "
                "epochs; leave one of them out"
            )
        if self.mode != "sync" and self.grads_to_wait != 1:
            raise UsageError(
                f"--grads-to-wait {self.grads_to_wait}: only --mode sync waits for gradients; "
                "add --mode sync"
            )

    @property
    def evaluates_epochs(self) -> bool:
        """Whether the model is evaluated at the end of each epoch, before the next one begins."""
        return bool(self.epochs_option)

    @property
    def epochs_option(self) -> str:
        """The option that asks for evaluations at the ends of epochs; empty if there is none."""
        if self.early_stop:
            return f"--early-stop {self.early_stop}"
        if self.keep_best:
            return f"--keep-best {self.keep_best}"
        return "--eval-epochs" if self.eval_epochs else ""


@dataclass(frozen=True)
class Objective:
    """A metric of the evaluation, and which of its values are better."""

    metric: str
    lower: bool
    """A lower value is better."""

    @classmethod
    def of(cls, text: str) -> Objective:
        """Return the objective of the value of ``--keep-best``.

        Raises:
            UsageError: the value is neither METRIC nor METRIC:min nor METRIC:max.
        """
        metric, _, way = text.partition(":")
        if not metric or way not in _WAYS:
            raise UsageError(
                f"--keep-best {text}: expected a metric of the evaluation, as auc; or auc:max, "
                "where its name does not tell what is better"
            )
        return cls(metric, _is_lower(metric, way))

    def is_better(self, value: float, best: float) -> bool:
        """Return whether a value is better than the best one so far; NaN never is."""
        better = value < best if self.lower else value > best
        return better or (math.isnan(best) and not math.isnan(value))

    def best(self, values: Sequence[float]) -> int:
        """Return the index of the best value, the first of several; NaN is never the best."""
        found = 0
        for place, value in enumerate(values):
            if self.is_better(value, values[found]) or math.isnan(values[found]):
                found = place
        return found


def _is_lower(metric: str, way: str) -> bool:
    return way == "min" or (not way and any(word in metric.lower() for word in _LOWER))


@dataclass(frozen=True)
class EarlyStop:
    """When the training stops before its last epoch."""

    objective: Objective
    patience: int
    """Epochs without a better value after which the training stops."""

    @classmethod
    def of(cls, text: str) -> EarlyStop:
        """Return the rule of the value of ``--early-stop``.

        Raises:
            UsageError: the value is neither METRIC:PATIENCE nor METRIC:PATIENCE:min nor :max.
        """
        metric, _, rest = text.partition(":")
        patience, _, way = rest.partition(":")
        if not metric or not patience.isdecimal() or not int(patience) or way not in _WAYS:
            raise UsageError(
                f"--early-stop {text}: expected a metric of the evaluation and a number of epochs, "
                "as auc:3; or auc:3:max, where its name does not tell what is better"
            )
        return cls(Objective(metric, _is_lower(metric, way)), int(patience))

    def is_due(self, values: Sequence[float]) -> bool:
        """Return True if the last ``patience`` values are no better than the best one before."""
        return len(values) - 1 - self.objective.best(values) >= self.patience

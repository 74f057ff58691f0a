"""Evaluation and prediction over all processes, of which each computes a part of the records; and
the figures of epochs on stdout: a bar on a terminal, and a line for each epoch."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import safetensors.torch
import torch
from torch.utils.data import DataLoader, IterableDataset

from torch_edl.api.job import Job
from torch_edl.errors import UsageError
from torch_edl.interfaces import Batch
from torch_edl.pytorch.batches import Batches, StreamBatches, open_batches
from torch_edl.pytorch.contract import TorchValues, describe
from torch_edl.training.contract.functions import UserMetric
from torch_edl.training.task_results import TaskMetrics, summarize
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.metric_states import MetricStates

_IN_ORDER = {"shuffle": False, "accumulate": 1, "drop_last": False, "seed": 0}
_ALL = 1 << 62
_MOST_STATE_BYTES = (1 << 31) - (1 << 20)  # a protobuf message has less than 2 GiB
# Prefix of training metrics, which are merged together with the metrics of an evaluation.
_TRAINED = "train/"

Metrics = Callable[[], dict[str, UserMetric]]
"""Function that returns new metrics by name."""


def part_of(
    dataset: Any, rank: int, world: int, batch_size: int, options: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield the batches of one process: a contiguous part of the records, or every ``world``-th
    batch of an ``IterableDataset``.

    Raises:
        UsageError: the dataset has an unsupported type or no records.
    """
    if isinstance(dataset, IterableDataset):
        # Each process of a DataLoader would read the whole stream.
        one = {**options, "num_workers": min(1, options.get("num_workers", 0))}
        stream = DataLoader(dataset, batch_size=batch_size, **one)
        yield from itertools.islice(stream, rank, None, world)
        return
    batches = _opened(dataset, batch_size, options)
    try:
        for span in batches.data.part(0, rank, world).spans:
            yield batches.take(span, 0, rank, world)
    finally:
        batches.close()


def check(dataset: Any, batch_size: int, options: Mapping[str, Any]) -> None:
    """Check the arguments of :func:`part_of` before training; see there for errors."""
    if not isinstance(dataset, IterableDataset):
        _opened(dataset, batch_size, options).close()


def _opened(dataset: Any, batch_size: int, options: Mapping[str, Any]) -> Batches | StreamBatches:
    # All records form one update, of which each process has a contiguous part.
    once = {"batch_size": batch_size, "epochs": 1, "global_batch_size": _ALL}
    return open_batches(dataset, {**_IN_ORDER, **once}, 0, options)


def evaluate(
    job: Job,
    batches: Callable[[int, int], Iterator[Batch]],
    predict: Callable[[Any], Any],
    loss: Callable[[Any, Any], Any],
    metrics: Metrics,
    others: Sequence[pb.MetricState] = (),
) -> dict[str, float]:
    """Compute loss and metrics over all records; every process returns the same values.

    Args:
        batches: function from (rank, world size) to the batches of this process.
        predict: function from features to predictions.
        metrics: function that returns new metrics by name.
        others: further means of this process, which are merged with those of the other processes.

    Returns:
        Loss, metrics and ``others`` by name; empty if there are no records.
    """

    values = TorchValues()

    def measure(rank: int, world: int) -> bytes:
        own = TaskMetrics(loss, metrics(), values)
        records = 0
        for batch in batches(rank, world):
            own.update(batch, predict(batch.features))
            records += batch.size
        # States of a process without records would distort the means.
        states = own.states() if records else []
        _require_size(states)
        return pb.Metrics(states=[*states, *others]).SerializeToString()

    def merge(parts: list[bytes]) -> dict[str, float]:
        merged = MetricStates()
        for rank, part in enumerate(parts):
            merged.add(rank, pb.Metrics.FromString(part).states)
        return {**merged.means(), **summarize(metrics(), merged.objects(), values)}

    figures: dict[str, float] = job.collect(measure, merge) or {}
    return figures


def _require_size(states: Sequence[pb.MetricState]) -> None:
    """Raise UsageError if the states of a process are too large for one message."""
    sizes = {s.name: sum(len(t.value.tensor_content) for t in s.tensors) for s in states}
    if sum(sizes.values()) > _MOST_STATE_BYTES:
        name = max(sizes, key=lambda name: sizes[name])
        raise UsageError(
            f"metric {name}: its states have {sizes[name]:,} bytes in this process; all metrics "
            f"may have {_MOST_STATE_BYTES:,}; take a metric that does not keep every prediction, "
            "such as torch_edl.metrics.AUC() or one of torchmetrics with thresholds="
        )


def trained_states(job: Job) -> list[pb.MetricState]:
    """Return the sums of the metrics that this process has logged since the last call."""
    return [
        pb.MetricState(name=_TRAINED + name, sum=total, records=records)
        for name, (total, records) in job.meter.totals().items()
    ]


def epoch_figures(found: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of an epoch by name; figures of the evaluation have the prefix
    ``eval_``."""
    trained = {n.removeprefix(_TRAINED): v for n, v in found.items() if n.startswith(_TRAINED)}
    return trained | {f"eval_{n}": v for n, v in found.items() if not n.startswith(_TRAINED)}


def predict(
    job: Job, batches: Callable[[int, int], Iterator[Any]], call: Callable[[Any], Any]
) -> Any:
    """Return the predictions of all records in every process, in dataset order, on the CPU.

    Args:
        batches: function from (rank, world size) to the features of this process.
        call: function from features to predictions.

    Raises:
        UsageError: the model returns no tensors, or the dataset is empty.
    """

    def compute(rank: int, world: int) -> bytes:
        parts: dict[str, list[torch.Tensor]] = {}
        for features in batches(rank, world):
            for name, value in _named(call(features)).items():
                parts.setdefault(name, []).append(value)
        return safetensors.torch.save({name: torch.cat(p) for name, p in parts.items()})

    # A process that joined after this prediction computes all parts, with its current model.
    made = job.gather(compute) or [compute(0, 1)]
    loaded = [part for part in map(safetensors.torch.load, made) if part]
    if not loaded:
        raise UsageError("the dataset is empty")
    return _unnamed({name: torch.cat([part[name] for part in loaded]) for name in loaded[0]})


# Names of the tensors of a prediction: a single tensor, items of a tuple, values of a dict. Values
# have numbers too, since safetensors changes the order of tensors.
_SINGLE, _ITEM, _KEY = "tensor", "item.", "key."


def _named(outputs: Any) -> dict[str, torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        named = {_SINGLE: outputs}
    elif isinstance(outputs, Mapping):
        numbered = enumerate(outputs.items())
        named = {f"{_KEY}{number:06}.{key}": value for number, (key, value) in numbered}
    elif isinstance(outputs, tuple | list) and outputs:
        named = {f"{_ITEM}{number}": value for number, value in enumerate(outputs)}
    else:
        named = {_SINGLE: outputs}
    for value in named.values():
        if not isinstance(value, torch.Tensor) or not value.ndim:
            raise UsageError(
                f"the model gives {describe(outputs)}; expected a tensor (or a tuple or dict of "
                "tensors) whose first dimension is samples"
            )
    return {name: value.detach().cpu().contiguous() for name, value in named.items()}


def _unnamed(tensors: dict[str, torch.Tensor]) -> Any:
    if _SINGLE in tensors:
        return tensors[_SINGLE]
    if next(iter(tensors)).startswith(_KEY):
        return {name.split(".", 2)[2]: tensors[name] for name in sorted(tensors)}
    return tuple(tensors[f"{_ITEM}{number}"] for number in range(len(tensors)))


@contextlib.contextmanager
def progress_bar(epoch: str, batches: int | None, *, shown: bool) -> Iterator[Callable[[], None]]:
    """Show the progress of an epoch if stdout is a terminal, until the context ends.

    Args:
        batches: number of batches of the epoch; None: unknown.
        shown: False for processes that share a terminal.

    Yields:
        A function that advances the bar by one batch.
    """
    if not (shown and sys.stdout.isatty()):
        yield lambda: None
        return
    # Imported here, since most processes have no terminal.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(f"epoch {epoch}", *columns, transient=True) as bar:
        task = bar.add_task("", total=batches)
        yield lambda: bar.advance(task)


def print_epoch(epoch: str, figures: Mapping[str, float], seconds: float) -> None:
    """Print the figures of an epoch as one line."""
    shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    print(f"epoch {epoch}: {shown} ({seconds:.1f} s)", flush=True)

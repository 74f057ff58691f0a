"""A process's part in an evaluation or a prediction.

The metrics of some records are states that merge exactly. A plain function is averaged by the
number of records. An object (our ``Metric``, torchmetrics) is updated with every minibatch; its
state tensors are merged over all workers, and one worker computes the figure. The predictions of a
task are one file, named by the task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_edl.argument_order import labels_first
from torch_edl.data.batch import Batch
from torch_edl.errors import ContractError
from torch_edl.trainer.step import describe
from torch_edl.wire import codec
from torch_edl.wire import master_pb2 as pb

LOSS = "loss"
SINGLE_OUTPUT = "prediction"


class TaskMetrics:
    """The metrics of one evaluation task, or of one process's part of an evaluation.

    Args:
        loss: of labels and predictions; see :func:`labels_first` for their order.
        metrics: by name, functions such as ``loss``, or fresh objects.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], metrics: Mapping[str, Any]) -> None:
        self._metrics = metrics
        plain = {name: m for name, m in metrics.items() if not hasattr(m, "update")}
        self._functions = {n: labels_first(m) for n, m in {LOSS: loss, **plain}.items()}
        self._updates = [labels_first(m.update) for m in metrics.values() if hasattr(m, "update")]
        self._means: dict[str, list[float]] = {name: [0.0, 0] for name in self._functions}

    def update(self, batch: Batch, predictions: Any) -> None:
        for name, function in self._functions.items():
            self._mean(name, function(batch.labels, predictions), batch.size)
        for update in self._updates:
            update(batch.labels, predictions)

    def _mean(self, name: str, value: Any, size: int) -> None:
        number = float(torch.as_tensor(value, dtype=torch.float64).mean())
        total = self._means[name]
        total[0] += number * size
        total[1] += size

    def states(self) -> list[pb.MetricState]:
        """What is merged with those of the others."""
        states = [
            pb.MetricState(name=name, sum=total, records=int(records))
            for name, (total, records) in self._means.items()
        ]
        for name, metric in self._metrics.items():
            if hasattr(metric, "update"):
                # A state that is merged as a mean weighs as many records as it saw.
                records = int(self._means[LOSS][1])
                state = pb.MetricState(name=name, object=True, records=records)
                for key, value, reduction in _tensors(name, metric):
                    state.tensors.add(
                        name=key, value=codec.to_proto(value.cpu().numpy()), reduction=reduction
                    )
                states.append(state)
        return states


def summarize(metrics: Mapping[str, Any], states: Iterable[pb.MetricState]) -> dict[str, float]:
    """The figures of metric objects (fresh ones, by name) from their merged states."""
    values = {}
    for state in states:
        metric = metrics[state.name]
        merged = {t.name: torch.from_numpy(codec.from_proto(t.value).copy()) for t in state.tensors}
        if _is_torchmetric(metric):
            _load_torchmetric(metric, merged)
        else:
            metric.merge(merged)
        computed = torch.as_tensor(metric.compute())
        if computed.numel() != 1:
            raise ContractError(
                f"metric {state.name!r}: compute() gives {tuple(computed.shape)} numbers; a metric "
                "is one number: average them, or give each a name of its own"
            )
        values[state.name] = float(computed)
    return values


def _is_torchmetric(metric: Any) -> bool:
    return hasattr(metric, "_reductions") and hasattr(metric, "_defaults")


def _tensors(name: str, metric: Any) -> Iterable[tuple[str, torch.Tensor, str]]:
    if not _is_torchmetric(metric):
        reductions: Mapping[str, str] = metric.reductions
        for key, value in metric.state().items():
            yield key, value, reductions[key]
        return
    for key, function in metric._reductions.items():
        value = getattr(metric, key)
        if isinstance(value, list):
            if not value:
                continue
            value = torch.cat([v.reshape(1) if v.ndim == 0 else v for v in value])
        yield key, value, _reduction(name, key, function)


def _reduction(metric: str, key: str, function: Callable[..., Any] | None) -> str:
    known = {"dim_zero_sum": "sum", "dim_zero_max": "max", "dim_zero_min": "min",
             "dim_zero_mean": "mean", "dim_zero_cat": "cat"}  # fmt: skip
    found = known.get(getattr(function, "__name__", ""))
    if found is None:
        raise ContractError(
            f"metric {metric!r}: its state {key!r} says not how it is merged over workers; "
            "give it a dist_reduce_fx of sum, mean, max, min or cat"
        )
    return found


def _load_torchmetric(metric: Any, merged: Mapping[str, torch.Tensor]) -> None:
    for key, value in merged.items():
        setattr(metric, key, [value] if isinstance(metric._defaults[key], list) else value)
    # compute() warns of a metric that was never updated.
    metric._update_count = 1


class TaskPredictions:
    """The outputs of one prediction task, in the order of its records.

    Args:
        processor: the user's ``prediction_outputs_processor``: a function of the outputs of a
            minibatch, or an object with ``process(outputs, worker_id)``. What it returns is
            kept instead, if it returns anything.
    """

    def __init__(self, processor: Any | None, worker_id: int) -> None:
        self._processor = processor
        self._worker_id = worker_id
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {}

    def add(self, outputs: Any) -> None:
        if self._processor is not None:
            process = getattr(self._processor, "process", None)
            made = process(outputs, self._worker_id) if process else self._processor(outputs)
            outputs = outputs if made is None else made
        for name, value in _named(outputs).items():
            self._parts.setdefault(name, []).append(value)

    def write(self, directory: str, task_id: int) -> int:
        """Writes ``part-TASK.npz``, by rename, so that a task done twice is written once;
        returns the number of rows."""
        name = f"part-{task_id:012d}.npz"
        arrays = {key: np.concatenate(parts) for key, parts in self._parts.items()}
        temporary = Path(directory) / f".{name}.{os.getpid()}"
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, Path(directory) / name)
        return len(next(iter(arrays.values()))) if arrays else 0


def _named(outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    if isinstance(outputs, Mapping):
        return {str(k): _array(v) for k, v in outputs.items()}
    if isinstance(outputs, tuple | list):
        return {f"{SINGLE_OUTPUT}_{i}": _array(v) for i, v in enumerate(outputs)}
    return {SINGLE_OUTPUT: _array(outputs)}


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        raise ContractError(
            f"the model's prediction is {describe(value)}; expected a tensor with a row for each "
            "record, or a tuple or dict of such"
        )
    return value

"""A process's part in an evaluation: metrics of some records as states that merge exactly.

A plain function is averaged by the number of records. An object (our ``Metric``, torchmetrics)
is updated with every minibatch; its state tensors are merged over all workers, and one worker
computes the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from torch_edl.argument_order import labels_first
from torch_edl.data.batch import Batch
from torch_edl.errors import ContractError
from torch_edl.wire import codec
from torch_edl.wire import master_pb2 as pb

LOSS = "loss"


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
        """Counts a minibatch in."""
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

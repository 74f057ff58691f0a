"""Conversion of torch tensors and metrics to numbers and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch

from torch_edl.errors import ContractError

Array = npt.NDArray[Any]


class TorchValues:
    """Conversion for torch; see :class:`~torch_edl.training.task_results.Values`."""

    def mean(self, value: Any) -> float:
        return float(torch.as_tensor(value, dtype=torch.float64).mean())

    def array(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach().cpu()
        return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()

    def describe(self, value: Any) -> str:
        return describe(value)

    def update_of(self, metric: Any) -> Callable[..., Any] | None:
        found: Callable[..., Any] | None = getattr(metric, "update", None)
        return found

    def states(self, name: str, metric: Any) -> Iterable[tuple[str, Array, str]]:
        for key, value, reduction in _tensors(name, metric):
            yield key, value.cpu().numpy(), reduction

    def compute(self, name: str, metric: Any, merged: Mapping[str, Array]) -> float:
        tensors = {key: torch.from_numpy(value.copy()) for key, value in merged.items()}
        if _is_torchmetric(metric):
            _load_torchmetric(metric, tensors)
        else:
            metric.merge(tensors)
        computed = torch.as_tensor(metric.compute())
        if computed.numel() != 1:
            raise ContractError(
                f"metric {name!r}: compute() gives {tuple(computed.shape)} numbers; a metric "
                "is one number: average them, or give each a name of its own"
            )
        return float(computed)


def describe(value: Any) -> str:
    """Return the shape and dtype of a tensor, or the type of any other value, for messages. The
    parts of tuples, lists and mappings are described one by one."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"({', '.join(describe(v) for v in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {describe(v)}' for name, v in value.items())}}}"
    return type(value).__name__


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
    # Without a count, compute() warns that the metric was never updated.
    metric._update_count = 1

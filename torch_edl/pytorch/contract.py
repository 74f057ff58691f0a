"""The contract of a model file of torch: its functions, what they return as numbers and arrays, and
the description of its model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from torch_edl.errors import ContractError, UnsupportedOptimizerError
from torch_edl.nn.embedding import Table
from torch_edl.optim import optimizer_config
from torch_edl.pytorch.signatures import SIGNATURES
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.contract.loading import load_functions
from torch_edl.training.diagnostics import describe_parts
from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Contract(UserFunctions):
    """The functions of a model file of torch."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    """Function from the parameters of the model to an optimizer."""
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    """Function from the optimizer to a learning rate scheduler; None: not defined."""

    signatures = SIGNATURES

    def make_model(self) -> nn.Module:
        """Call ``model`` and return its module.

        Raises:
            ContractError: the function raised, or did not return a module.
        """
        module = self._call(f"{self.named('model')}()", self.model)
        if not isinstance(module, nn.Module):
            raise self._wrong("model", module, "a torch.nn.Module")
        return module

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """Call ``optimizer`` with the parameters of ``module``, and return its optimizer.

        Raises:
            ContractError: the function raised, did not return an optimizer, or returned an
                optimizer whose ``step`` needs a closure.
        """
        made = self._call(
            "optimizer(model.parameters())", lambda: self.optimizer(module.parameters())
        )
        if not isinstance(made, torch.optim.Optimizer):
            raise self._wrong("optimizer", made, "a torch.optim.Optimizer")
        closure = inspect.signature(type(made).step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ContractError(
                f"{self.path}: optimizer returned {type(made).__name__}, whose step needs a "
                "closure, and the gradients of a minibatch of a model file are computed once; "
                "return another optimizer, or write a training script, for a single process"
            )
        return made

    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Call ``scheduler`` and return its scheduler; None if the file does not define it.

        Raises:
            ContractError: the function raised, or did not return a scheduler.
        """
        if self.scheduler is None:
            return None
        made = self._call("scheduler(optimizer)", lambda: self.scheduler(optimizer))  # type: ignore[misc]
        if not hasattr(made, "step"):
            raise self._wrong("scheduler", made, "a scheduler of torch.optim.lr_scheduler")
        return made


def load_contract(path: str, args: Sequence[str] = ()) -> Contract:
    """Execute a model file and return its functions.

    Args:
        args: ``sys.argv[1:]`` of the file.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    signatures = Contract.signatures
    found = load_functions(path, args, signatures, lambda value: isinstance(value, nn.Module))
    return Contract(**found)


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
    """Return the shape and dtype of a tensor, or the type of any other value, for messages."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return describe_parts(value, describe)


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
        yield key, value, _reduction(name, key, function, metric._defaults[key])


def _reduction(metric: str, key: str, function: Callable[..., Any] | None, default: Any) -> str:
    if function is None and isinstance(default, list):
        return "cat"  # as torchmetrics itself gathers lists, such as those of retrieval metrics
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


def device_name(module: nn.Module) -> str:
    """Return the device of the first parameter, with the name of a GPU, or the number of GPUs that
    are not used."""
    first = next(module.parameters(), torch.empty(0))
    if first.device.type != "cuda":
        unused = torch.cuda.device_count()
        return f"{first.device}" + f" ({unused} GPUs are not used)" * bool(unused)
    return f"{first.device} ({torch.cuda.get_device_name(first.device)})"


def report_model(module: nn.Module, optimizer: torch.optim.Optimizer) -> pb.ReportModelRequest:
    """Return the description of a model: its optimizer, its size and its embeddings."""
    report = pb.ReportModelRequest(
        optimizer=type(optimizer).__name__,
        dense_elements=sum(p.numel() for p in module.parameters()),
        device=device_name(module),
    )
    try:
        optimizer_config(optimizer)
    except UnsupportedOptimizerError as error:
        report.optimizer_error = str(error)
    for name, part in module.named_modules():
        if isinstance(part, Table | nn.Embedding | nn.EmbeddingBag):
            report.embeddings.add(
                name=name,
                num_embeddings=part.num_embeddings or 0,
                dim=part.embedding_dim,
                dynamic=isinstance(part, Table),
            )
    return report

"""The tables of a model: replace large embeddings by tables, name tables, and list all other
values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl.config.training import TrainConfig
from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Embedding, EmbeddingBag, Table
from torch_edl.tables.initializers import Initializer, check_drawn, measured
from torch_edl.tables.options import bind_tables


def swap_large(
    model: nn.Module,
    threshold: int,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    restored: bool = False,
) -> dict[str, Table]:
    """Replace each ``nn.Embedding`` and ``nn.EmbeddingBag`` of more than ``threshold`` elements by
    a table, also in the parameter groups of the optimizer.

    Modules with features that tables do not support are not replaced: ``max_norm``,
    ``scale_grad_by_freq``, the mode ``max``, frozen weights, and weights shared with other modules.

    Args:
        restored: True if the rows will be loaded, so that the values of the weights do not matter.

    Returns:
        The new modules by path.

    Raises:
        UsageError: a weight has values that are not random and would be lost.
    """
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    swapped: dict[str, Table] = {}
    for path, module in list(model.named_modules()):
        if not path or not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue
        if module.weight.numel() > threshold and _plain(module) and uses[id(module.weight)] == 1:
            _check_padding(path, module)
            if not restored:
                check_drawn(path, _drawn(module.weight.detach(), module.padding_idx))
            parent, _, name = path.rpartition(".")
            swapped[path] = _table(module)
            setattr(model.get_submodule(parent), name, swapped[path])
            if optimizer is not None:
                _replace(optimizer, module.weight, swapped[path].weight)
    return swapped


def check_shared(model: nn.Module) -> None:
    """Raise UsageError if a forward pass would change parameters in this process only."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise UsageError(
                f"embedding {path}: max_norm={module.max_norm} shortens rows of the weight in each "
                "forward pass, which neither other processes nor parameter servers see; leave it "
                "out and shorten the output: rows * (max_norm / rows.norm(dim=-1, "
                "keepdim=True)).clamp(max=1), or train in a single process"
            )


def set_defaults(model: nn.Module, train: TrainConfig) -> None:
    """Apply the job's defaults to the tables of a model."""
    for module in model.modules():
        if isinstance(module, Table):
            module.options = module.options.with_defaults(train)


def _replace(optimizer: torch.optim.Optimizer, old: torch.Tensor, new: torch.Tensor) -> None:
    """Replace a large weight in the optimizer, with its state, by the empty weight of a table."""
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    for slot, value in optimizer.state.pop(old, {}).items():
        large = isinstance(value, torch.Tensor) and value.shape == old.shape
        optimizer.state[new][slot] = value.new_empty(new.shape) if large else value


def _plain(module: nn.Embedding | nn.EmbeddingBag) -> bool:
    return (
        module.max_norm is None
        and not module.scale_grad_by_freq
        and module.weight.requires_grad
        and getattr(module, "mode", "") != "max"
    )


def _table(module: nn.Embedding | nn.EmbeddingBag) -> Table:
    initializer = distribution(module.weight.detach(), module.padding_idx)
    if isinstance(module, nn.Embedding):
        return Embedding(
            module.num_embeddings,
            module.embedding_dim,
            module.padding_idx,
            initializer=initializer,
        )
    return EmbeddingBag(
        module.num_embeddings,
        module.embedding_dim,
        module.mode,
        module.include_last_offset,
        module.padding_idx,
        initializer=initializer,
    )


def _check_padding(path: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Raise UsageError if the row of padding is not zero, as it is in a table."""
    padding = module.padding_idx
    # A bag ignores padding, whatever values the row has.
    if padding is None or isinstance(module, nn.EmbeddingBag):
        return
    if module.weight.detach()[padding].any():
        raise UsageError(
            f"embedding {path}: the row of its padding_idx {padding} is not zero (an "
            "initialization of the whole weight overwrites it), but is zero on parameter servers; "
            f"write weight.data[{padding}].zero_(), or make the embedding without padding_idx"
        )


def distribution(weight: torch.Tensor, padding_idx: int | None = None) -> Initializer:
    """Estimate the distribution of the rows of ``weight`` (n, dim), except the row of padding."""
    return measured(_drawn(weight, padding_idx))


def _drawn(weight: torch.Tensor, padding_idx: int | None) -> npt.NDArray[np.float32]:
    """Return the initialized rows: all rows except the row of padding, which is zero."""
    if padding_idx is not None:
        weight = weight[torch.arange(weight.shape[0]) != padding_idx]
    drawn: npt.NDArray[np.float32] = weight.cpu().float().numpy()
    return drawn


def tables_of(model: nn.Module) -> list[Table]:
    """Return the tables of a model, named by :func:`~torch_edl.tables.options.bind_tables`.

    Raises:
        UsageError: two modules of one table differ in dim.
    """
    named = model.named_modules(remove_duplicate=False)
    return bind_tables((path, module) for path, module in named if isinstance(module, Table))


def dense_names(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, bool]]:
    """Yield name, module, attribute and ``is_buffer`` of each value of the ``state_dict``, except
    tables. A tied weight is listed under each of its names."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, Table)}
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in tables:
                yield prefix + name, module, name, False
        passing = getattr(module, "_non_persistent_buffers_set", ())
        for name, _ in module.named_buffers(recurse=False, remove_duplicate=False):
            if name not in passing:
                yield prefix + name, module, name, True

"""The tables of a model: which embeddings become tables, what the tables are called, and the names
of the values that are in no table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Embedding, EmbeddingBag, Table
from torch_edl.tables.initializers import Initializer, check_drawn, measured
from torch_edl.tables.naming import bind_tables


def swap_large(
    model: nn.Module,
    threshold: int,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    restored: bool = False,
) -> dict[str, Table]:
    """Replaces every ``nn.Embedding`` and ``nn.EmbeddingBag`` of more than ``threshold`` elements,
    and their weights in the parameter groups of the optimizer.

    Modules with features that tables lack stay as they are: ``max_norm``, ``scale_grad_by_freq``,
    the mode ``max``, frozen weights, and weights that another module shares.

    Args:
        restored: the rows come from a checkpoint or another model, whatever the weights are.

    Returns:
        The new modules by their paths.

    Raises:
        UsageError: the weights of one have values that would be lost.
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


def set_defaults(model: nn.Module, max_rows: int, storage_dtype: str) -> None:
    """What the job says about tables that say nothing themselves.

    Args:
        max_rows: of a table that has neither ``num_embeddings`` nor a bound; 0: none.
        storage_dtype: how rows are kept, see :class:`~torch_edl.nn.Embedding`.
    """
    for module in model.modules():
        if isinstance(module, Table):
            module.options = module.options.with_defaults(max_rows, storage_dtype)


def _replace(optimizer: torch.optim.Optimizer, old: torch.Tensor, new: torch.Tensor) -> None:
    """Replaces a large weight by the empty one of a table; some optimizers have a state of it."""
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
    """Raises UsageError if the row of padding counts in the model; that of a table is zero."""
    padding = module.padding_idx
    # A bag leaves padding out, whatever its row is.
    if padding is None or isinstance(module, nn.EmbeddingBag):
        return
    if module.weight.detach()[padding].any():
        raise UsageError(
            f"embedding {path}: the row of its padding_idx {padding} is not zero (an "
            "initialization of the whole weight overwrites it), but is zero on parameter servers; "
            f"write weight.data[{padding}].zero_(), or make the embedding without padding_idx"
        )


def distribution(weight: torch.Tensor, padding_idx: int | None = None) -> Initializer:
    """The distribution that fits the rows of ``weight`` (n, dim), that of padding left out."""
    return measured(_drawn(weight, padding_idx))


def _drawn(weight: torch.Tensor, padding_idx: int | None) -> npt.NDArray[np.float32]:
    """The rows that were drawn: all but that of padding, which is zero."""
    if padding_idx is not None:
        weight = weight[torch.arange(weight.shape[0]) != padding_idx]
    drawn: npt.NDArray[np.float32] = weight.cpu().float().numpy()
    return drawn


def tables_of(model: nn.Module) -> list[Table]:
    """The tables of a model, named as :func:`~torch_edl.tables.naming.bind_tables` does.

    Raises:
        UsageError: two modules of one table name differ in size.
    """
    named = model.named_modules(remove_duplicate=False)
    return bind_tables((path, module) for path, module in named if isinstance(module, Table))


def dense_names(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, bool]]:
    """Each name of the ``state_dict`` except those of tables, with its module and attribute, and
    whether it is a buffer. A tied weight comes under each of its names."""
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

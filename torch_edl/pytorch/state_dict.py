"""State of models, optimizers and schedulers as named tensors and JSON (no pickle), and files of a
model's ``state_dict``. Saved values are checked against the model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from torch_edl.checkpoint.durable import replacing_path
from torch_edl.engine.replica import other_model
from torch_edl.errors import CheckpointError, EdlError, UsageError

_SHOWN = 3
_PLAIN = (str, int, float, type(None))
"""Types that JSON can represent directly; bool is a subclass of int."""
# A dict with keys that are not strings is written as a list of pairs.
_PAIRS, _COUNTS = "__pairs__", "__counts__"


def flatten_optimizer(
    state: dict[str, Any], owner: str = "the optimizer"
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Split an optimizer's state into named tensors and JSON values.

    A tensor is named by its path, such as ``0.exp_avg``; the JSON values refer to these names.

    Args:
        owner: name of the optimizer, for messages.

    Raises:
        UsageError: the state has a value that is neither a tensor nor plain.
    """
    tensors: dict[str, torch.Tensor] = {}
    values = _flatten(state["state"], "", tensors, owner)
    return tensors, {"groups": jsonable(state["param_groups"], owner), "values": values}


def flatten(state: Any, owner: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Split any state into named tensors and JSON values, as :func:`flatten_optimizer` does.

    Raises:
        UsageError: the state has a value that is neither a tensor nor plain.
    """
    tensors: dict[str, torch.Tensor] = {}
    values = _flatten(state, "", tensors, owner)
    return tensors, values


def unflatten(tensors: Mapping[str, torch.Tensor], values: Any) -> Any:
    """Return the state that :func:`flatten` split."""
    return _unflatten(values, tensors)


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    rest: Mapping[str, Any],
    *,
    exact: bool,
) -> None:
    """Load what :func:`flatten_optimizer` returned.

    Args:
        exact: keep the saved types. ``load_state_dict`` casts each tensor to the type of its
            parameter and corrupts strings; only with ``exact``, the optimizer of a member that
            joins a ring equals the original bit by bit.
    """
    given = {
        "state": _unflatten(rest["values"], tensors),
        "param_groups": from_json(rest["groups"]),
    }
    optimizer.load_state_dict(given)
    if not exact:
        return
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    for index, parameter in enumerate(parameters):
        if index in given["state"]:
            optimizer.state[parameter] = _uncast(optimizer.state[parameter], given["state"][index])


def check_groups(optimizer: torch.optim.Optimizer, rest: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless the saved parameter groups fit the optimizer."""
    own, saved = optimizer.state_dict()["param_groups"], rest["groups"]
    sizes = [[len(group["params"]) for group in groups] for groups in (own, saved)]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"the state is of another optimizer: groups of {sizes[1]} parameters, here of "
            f"{sizes[0]}"
        )
    for mine, theirs in zip(own, saved, strict=True):
        missing, extra = sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys())
        # Other versions of torch have more or fewer options; another optimizer has both.
        if missing and extra:
            raise CheckpointError(
                f"the state is of another optimizer: it lacks {missing}, has {extra}"
            )


def check_model(saved: Mapping[str, Any], own: Mapping[str, Any], *, where: object) -> None:
    """Compare the names and shapes of saved values with those of the model.

    Args:
        saved: shapes of the saved values, by name.
        own: shapes of the values of the model in this process, by name.
        where: source of the saved values, for messages.

    Raises:
        CheckpointError: names or shapes differ.
    """
    lacking = [name for name in own if name not in saved]
    besides = sorted(name for name in saved if name not in own)
    differ = [
        f"{name} is {_shape(saved[name])} there and {_shape(own[name])} here"
        for name in own
        if name in saved and tuple(saved[name]) != tuple(own[name])
    ]
    found = [f"it lacks {_some(lacking)}"] * bool(lacking)
    found += [f"it has {_some(besides)} besides"] * bool(besides)
    found += [_some(differ)] * bool(differ)
    if found:
        raise CheckpointError(other_model(where, ", ".join(found)))


def jsonable(value: Any, owner: str = "the state", where: str = "") -> Any:
    """Convert a state to JSON values; tensors of one element become numbers.

    Args:
        owner: owner of the state, for messages.

    Raises:
        UsageError: the state has a value that JSON cannot represent.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, dict):
        items = {k: jsonable(v, owner, f"{where}.{k}") for k, v in value.items() if not callable(v)}
        if all(isinstance(key, str) for key in items):
            return items
        # JSON would convert the keys to strings, but MultiStepLR has milestones with int keys.
        return {_PAIRS: [*map(list, items.items())], _COUNTS: isinstance(value, Counter)}
    if isinstance(value, list | tuple):
        return [jsonable(v, owner, f"{where}.{i}") for i, v in enumerate(value)]
    if not isinstance(value, _PLAIN):
        raise _unsupported(owner, where.lstrip("."), value)
    return value


def from_json(value: Any) -> Any:
    """Restore what :func:`jsonable` returned, except for tuples and one-element tensors."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _PAIRS in value:
        items = {key: from_json(item) for key, item in value[_PAIRS]}
        return Counter(items) if value[_COUNTS] else items
    return {key: from_json(item) for key, item in value.items()}


def _flatten(value: Any, name: str, tensors: dict[str, torch.Tensor], owner: str) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise _unsupported(owner, name, value)
        while name in tensors:  # {"a.b": ..., "a": {"b": ...}}
            name += "_"
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, _PLAIN):
                raise _unsupported(owner, f"a key of {name}", key)
        named = ((key, f"{name}.{key}".lstrip("."), each) for key, each in value.items())
        return {"dict": [[key, _flatten(each, at, tensors, owner)] for key, at, each in named]}
    if type(value) in (list, tuple):
        parts = [_flatten(part, f"{name}.{i}", tensors, owner) for i, part in enumerate(value)]
        return {type(value).__name__: parts}
    if not isinstance(value, _PLAIN):
        raise _unsupported(owner, name, value)
    return value


def _unflatten(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Restore what :func:`_flatten` returned."""
    if not isinstance(value, dict):
        return value
    ((kind, part),) = value.items()
    if kind == "tensor":
        return tensors[part]
    if kind == "dict":
        return {key: _unflatten(item, tensors) for key, item in part}
    items = [_unflatten(item, tensors) for item in part]
    return tuple(items) if kind == "tuple" else items


def _uncast(loaded: Any, given: Any) -> Any:
    if isinstance(given, str):
        return given
    if type(loaded) is not type(given):  # converted by the optimizer, as Adam does for steps
        return loaded
    if isinstance(given, torch.Tensor):
        return loaded if loaded.dtype == given.dtype else given.to(loaded.device)
    if isinstance(given, dict):
        return {key: _uncast(value, given.get(key)) for key, value in loaded.items()}
    if isinstance(given, list | tuple) and len(given) == len(loaded):
        return type(given)(_uncast(*pair) for pair in zip(loaded, given, strict=True))
    return loaded


def _shape(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"


def _some(texts: list[str]) -> str:
    rest = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")


def _unsupported(owner: str, where: str, value: Any) -> UsageError:
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        kind += f" ({value.layout}, shape {tuple(value.shape)})"
    return UsageError(
        f"{owner}: its state has a {kind} at {where}, which neither a checkpoint nor a process "
        "that joins can hold; expected dense tensors, numbers, texts, None, and lists, tuples and "
        "dicts of these: keep the value elsewhere, or use another optimizer"
    )


def copied(model: nn.Module) -> dict[str, Any]:
    """Copy the ``state_dict`` of a model to the CPU, so that training does not change the copy."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
        for name, value in model.state_dict().items()
    }


_TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (*_TORCH_SUFFIXES, ".safetensors")


def checked(path: str | os.PathLike[str]) -> Path:
    """Return the path if its suffix is supported.

    Raises:
        UsageError: the suffix is not supported.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: the suffix selects the format: use .safetensors or .pt")
    return path


def write(state: Mapping[str, Any], path: Path) -> None:
    """Write a ``state_dict`` atomically; create missing folders.

    Raises:
        EdlError: the file cannot be written.
        UsageError: a value is not a tensor, and the format is safetensors.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_path(path) as temporary:
            if path.suffix in _TORCH_SUFFIXES:
                with open(temporary, "wb") as file:
                    torch.save(dict(state), file)
            else:
                safetensors.torch.save_file(_apart(state), temporary)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        # torch raises the disk's error as a context; safetensors has only its text.
        behind = error if isinstance(error, OSError) else error.__context__
        cause = behind.strerror if isinstance(behind, OSError) else error
        raise EdlError(f"{path}: cannot be written: {cause}") from error


def read(path: Path) -> Mapping[str, Any]:
    """Read a file of :func:`write` or ``torch.save``; the tensors are on the CPU.

    Raises:
        UsageError: the file does not hold a ``state_dict``.
    """
    if path.suffix not in _TORCH_SUFFIXES:
        return safetensors.torch.load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise UsageError(f"{path}: holds {type(state).__name__}, not a state_dict")
    return state


def _apart(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return contiguous tensors that share no memory, which safetensors requires.

    Raises:
        UsageError: a value is not a tensor.
    """
    made: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"{name}: {type(value).__name__}; safetensors has tensors only, use .pt"
            )
        memory = value.untyped_storage().data_ptr()
        made[name] = value.clone() if memory in seen else value.contiguous()
        seen.add(memory)
    return made

"""The ``state_dict`` of a model in a file that torch and safetensors read without us."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from torch_edl.errors import UsageError

_TORCH_SUFFIXES = (".pt", ".pth")


def checked(path: str | os.PathLike[str]) -> Path:
    """The path, if its suffix is one that is known.

    Raises:
        UsageError: it is not.
    """
    path = Path(path)
    if path.suffix not in (*_TORCH_SUFFIXES, ".safetensors"):
        raise UsageError(f"{path}: the suffix says how it is written: .safetensors or .pt")
    return path


def write(model: nn.Module, path: Path) -> None:
    """Writes it whole or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # A copy of each: safetensors takes no two tensors in one memory (tied weights).
    state = {name: _copied(value) for name, value in model.state_dict().items()}
    try:
        if path.suffix in _TORCH_SUFFIXES:
            torch.save(state, temporary)
        else:
            safetensors.torch.save_file(state, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Mapping[str, Any]:
    """What :func:`write` wrote, or torch; on the CPU.

    Raises:
        UsageError: the file holds something else.
    """
    if path.suffix not in _TORCH_SUFFIXES:
        return safetensors.torch.load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise UsageError(f"{path}: holds {type(state).__name__}, not a state_dict")
    return state


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    return value

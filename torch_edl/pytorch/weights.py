"""Files of a model's ``state_dict``, in the format of torch or of safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from torch_edl.checkpoint.durable import replacing_path
from torch_edl.errors import EdlError, UsageError

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

"""The ``state_dict`` of a model in a file of torch or safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from torch_edl.errors import EdlError, UsageError
from torch_edl.files import replacing_path

_TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (*_TORCH_SUFFIXES, ".safetensors")


def checked(path: str | os.PathLike[str]) -> Path:
    """The path, if its suffix is supported.

    Raises:
        UsageError: the suffix is another one.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: the suffix selects the format: use .safetensors or .pt")
    return path


def write(state: Mapping[str, Any], path: Path) -> None:
    """Writes a ``state_dict``, whole or not at all; missing folders are created.

    Raises:
        EdlError: the file cannot be written.
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
        # torch and safetensors hide the error of the disk: one as context, the other in a text.
        behind = error if isinstance(error, OSError) else error.__context__
        cause = behind.strerror if isinstance(behind, OSError) else error
        raise EdlError(f"{path}: cannot be written: {cause}") from error


def read(path: Path) -> Mapping[str, Any]:
    """Reads a file of :func:`write` or ``torch.save``, to the CPU.

    Raises:
        UsageError: the file holds something else.
    """
    if path.suffix not in _TORCH_SUFFIXES:
        return safetensors.torch.load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise UsageError(f"{path}: holds {type(state).__name__}, not a state_dict")
    return state


def _apart(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The same tensors, each in memory of its own: safetensors rejects shared memory."""
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

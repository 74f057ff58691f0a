"""The backend of PyTorch, as :class:`torch_edl.interfaces.Backend`.

This module imports torch only when a method needs it: the client reads names and signatures here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_edl.interfaces import Backend
from torch_edl.pytorch.signatures import SIGNATURES


class _PyTorch(Backend):
    name = "torch"
    title = "PyTorch"
    signatures = SIGNATURES
    options = frozenset({"--loader-workers", "--pin-memory"})
    exports = (".pt", ".pth", ".safetensors")

    def warm_up(self) -> None:
        from torch_edl.pytorch import contract, model_file  # noqa: F401 - they import torch
        from torch_edl.pytorch.torch_internals import defer_compiler

        defer_compiler()

    def load_contract(self, path: str, args: Sequence[str]) -> Any:
        from torch_edl.pytorch.contract import load_contract

        return load_contract(path, args)

    def make_model(self, functions: Any, config: Any) -> Any:
        from torch_edl.pytorch.model_file import ModelFile

        return ModelFile(functions, config)

    def export(self, folder: Path, model_file: str, file: Path) -> str:
        from torch_edl.pytorch import state_dict
        from torch_edl.pytorch.replica import read_model

        state = read_model(folder)
        state_dict.write(state, file)
        elements = sum(tensor.numel() for tensor in state.values())
        return f"{file}: {len(state)} tensors, {elements:,} elements"


BACKEND = _PyTorch()

"""torch-edl: an elastic trainer for PyTorch.

The public names are loaded when first used, so that ``import torch_edl`` (the master, the
servers, the command line) does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_edl import metrics, nn, optim

__version__ = "0.1.0"
__all__ = ["metrics", "nn", "optim"]

_LAZY = {"nn": "torch_edl.nn", "optim": "torch_edl.optim", "metrics": "torch_edl.metrics"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(_LAZY[name])
    raise AttributeError(f"module 'torch_edl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])

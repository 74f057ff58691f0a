"""torch-edl: an elastic trainer for PyTorch.

The public names are loaded at their first use, so that ``import torch_edl`` does not import torch
in the master, the servers and the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_edl import metrics, nn, optim, preprocessing
    from torch_edl.api.elastic_trainer import ElasticTrainer
    from torch_edl.api.job import Job
    from torch_edl.api.opening import current_job, init
    from torch_edl.data.batch import Mode

__version__ = "0.1.0"
__all__ = [
    "ElasticTrainer",
    "Job",
    "Mode",
    "current_job",
    "init",
    "metrics",
    "nn",
    "optim",
    "preprocessing",
]

# Public name to its module and its attribute there; an empty attribute means the module itself.
_LAZY = {
    "nn": ("torch_edl.nn", ""),
    "optim": ("torch_edl.optim", ""),
    "metrics": ("torch_edl.metrics", ""),
    "preprocessing": ("torch_edl.preprocessing", ""),
    "ElasticTrainer": ("torch_edl.api.elastic_trainer", "ElasticTrainer"),
    "current_job": ("torch_edl.api.opening", "current_job"),
    "init": ("torch_edl.api.opening", "init"),
    "Mode": ("torch_edl.data.batch", "Mode"),
    "Job": ("torch_edl.api.job", "Job"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, attribute = _LAZY[name]
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    raise AttributeError(f"module 'torch_edl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])

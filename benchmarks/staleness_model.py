"""The model of `staleness.py`: DeepFM of `examples/deepfm/`, with an optimizer by name.

Arguments: name and learning rate of the optimizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import torch_edl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.deepfm_data import example

feed, loss, eval_metrics_fn = example.feed, example.loss, example.eval_metrics_fn
columns = example.columns
DIM, HIDDEN, INIT_STD = 8, (64,), 0.03


def model() -> nn.Module:
    start = ("normal", {"mean": 0.0, "std": INIT_STD})
    return example.DeepFM(
        lambda dim: torch_edl.nn.Embedding(None, dim, initializer=start), DIM, HIDDEN
    )


def optimizer(params) -> torch.optim.Optimizer:
    name, rate = sys.argv[1:]
    return getattr(torch.optim, name)(params, lr=float(rate))

"""Signatures of the functions in a model file of torch; this module imports no framework."""

from __future__ import annotations

from collections.abc import Mapping

from torch_edl.interfaces import Signature
from torch_edl.training.contract.loading import FOR_ALL

SIGNATURES: Mapping[str, Signature] = {
    "model": Signature(
        "def model(): return torch.nn.Linear(10, 1)",
        others=("forward", "custom_model", "CustomModel"),
        required=True,
    ),
    "loss": Signature(
        "def loss(labels, predictions): return F.mse_loss(predictions, labels)",
        2,
        required=True,
    ),
    "optimizer": Signature(
        "def optimizer(params): return torch.optim.SGD(params, lr=0.1)", 1, required=True
    ),
    "feed": Signature(
        "def feed(records, mode, metadata): return features, labels",
        3,
        others=("dataset_fn",),
        required=True,
    ),
    "scheduler": Signature(
        "def scheduler(optimizer): return torch.optim.lr_scheduler.StepLR(optimizer, 100)", 1
    ),
    **FOR_ALL,
}
"""Signatures by the documented names of the functions."""

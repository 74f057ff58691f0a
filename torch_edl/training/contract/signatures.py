"""The signatures of the functions of a model file, with examples for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Signature:
    """The signature of a function that a model file defines."""

    example: str
    """Example of a definition, for messages."""
    arguments: int = 0
    """Number of positional arguments."""
    others: tuple[str, ...] = ()
    """Further accepted names."""
    required: bool = False
    """True if a model file must define the function."""


_TORCH = {
    "model": Signature(
        "def model(): return torch.nn.Linear(10, 1)",
        others=("forward", "custom_model", "CustomModel"),
        required=True,
    ),
    "loss": Signature(
        "def loss(labels, predictions): return F.mse_loss(predictions, labels)", 2, required=True
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
    "eval_metrics_fn": Signature("def eval_metrics_fn(): return {'accuracy': accuracy}"),
    "scheduler": Signature(
        "def scheduler(optimizer): return torch.optim.lr_scheduler.StepLR(optimizer, 100)", 1
    ),
    "callbacks": Signature("def callbacks(): return [MyCallback()]"),
    "data_source": Signature("def data_source(paths): return MySource(paths)", 1),
}
_TENSORFLOW = {
    "model": Signature(
        "def model(): return keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])",
        others=("forward", "custom_model", "CustomModel"),
        required=True,
    ),
    "loss": Signature(
        "def loss(labels, predictions): return tf.reduce_mean((labels - predictions) ** 2)",
        2,
        required=True,
    ),
    "optimizer": Signature("def optimizer(): return keras.optimizers.SGD(0.1)", required=True),
    "feed": Signature(
        "def dataset_fn(dataset, mode, metadata): return dataset.map(parse)",
        3,
        others=("dataset_fn",),
        required=True,
    ),
    "eval_metrics_fn": _TORCH["eval_metrics_fn"],
    "callbacks": _TORCH["callbacks"],
    "data_source": _TORCH["data_source"],
}
SIGNATURES: Mapping[str, Mapping[str, Signature]] = {"torch": _TORCH, "tensorflow": _TENSORFLOW}
"""Signatures by framework, then by the documented name of the function."""

PROCESSORS = ("prediction_outputs_processor", "PredictionOutputsProcessor")
"""Names of the function or class that processes the outputs of a prediction."""


def missing(path: str, name: str, found: Signature) -> str:
    """Return the message for a file that lacks a required function."""
    other = f" (or {', '.join(map(repr, found.others))})" if found.others else ""
    return f"{path}: no function {name!r}{other}: add for example:\n    {found.example}"


def takes_others(path: str, name: str, shown: str, found: Signature) -> str:
    """Return the message for a function that takes other arguments.

    Args:
        name: documented name of the function.
        shown: name and signature of the function in the file.
    """
    if name == "model":
        return (
            f"{path}: {shown} is called without arguments; give them defaults, or let the file "
            "read them from sys.argv (argparse) while it is loaded and pass them behind --: "
            f"torch-edl run {Path(path).name} ... -- ARGUMENTS"
        )
    count = found.arguments
    return (
        f"{path}: {shown} does not take {count} argument{'s' * (count != 1)}; write for example:\n"
        f"    {found.example}"
    )

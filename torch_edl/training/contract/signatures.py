"""Signatures of functions that the model files of all backends have, and messages about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch_edl.interfaces import Signature

FOR_ALL: Mapping[str, Signature] = {
    "eval_metrics_fn": Signature("def eval_metrics_fn(): return {'accuracy': accuracy}"),
    "callbacks": Signature("def callbacks(): return [MyCallback()]"),
    "data_source": Signature("def data_source(paths): return MySource(paths)", 1),
}
"""Signatures that all backends have, by the documented name of the function."""

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

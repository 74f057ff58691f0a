"""A worker's part in a prediction: the outputs of a task as one file, named by the task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_edl.errors import ContractError
from torch_edl.trainer.step import describe

SINGLE_OUTPUT = "prediction"


class TaskPredictions:
    """The outputs of one prediction task, in the order of its records.

    Args:
        processor: the user's ``prediction_outputs_processor``: a function of the outputs of a
            minibatch, or an object with ``process(outputs, worker_id)``. What it returns is
            kept instead, if it returns anything.
    """

    def __init__(self, processor: Any | None, worker_id: int) -> None:
        self._processor = processor
        self._worker_id = worker_id
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {}

    def add(self, outputs: Any) -> None:
        """Takes the outputs of a minibatch."""
        if self._processor is not None:
            process = getattr(self._processor, "process", None)
            made = process(outputs, self._worker_id) if process else self._processor(outputs)
            outputs = outputs if made is None else made
        for name, value in _named(outputs).items():
            self._parts.setdefault(name, []).append(value)

    def write(self, directory: str, task_id: int) -> int:
        """Writes ``part-TASK.npz``, by rename, so that a task done twice is written once;
        returns the number of rows."""
        name = f"part-{task_id:012d}.npz"
        arrays = {key: np.concatenate(parts) for key, parts in self._parts.items()}
        temporary = Path(directory) / f".{name}.{os.getpid()}"
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, Path(directory) / name)
        return len(next(iter(arrays.values()))) if arrays else 0


def _named(outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    if isinstance(outputs, Mapping):
        return {str(k): _array(v) for k, v in outputs.items()}
    if isinstance(outputs, tuple | list):
        return {f"{SINGLE_OUTPUT}_{i}": _array(v) for i, v in enumerate(outputs)}
    return {SINGLE_OUTPUT: _array(outputs)}


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        raise ContractError(
            f"the model's prediction is {describe(value)}; expected a tensor with a row for each "
            "record, or a tuple or dict of such"
        )
    return value

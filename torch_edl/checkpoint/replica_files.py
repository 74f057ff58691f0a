"""Files of a checkpoint that one worker writes, with the whole model and its optimizer; see
:mod:`torch_edl.pytorch.replica` and :mod:`tf_compat.replica`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch_edl.checkpoint import tensor_files
from torch_edl.errors import CheckpointError

STEM = "shard-0-of-1"
MODEL_FILE = f"{STEM}.dense.safetensors"
OPTIMIZER_FILE = f"{STEM}.optimizer.safetensors"
_KERAS = "keras"


def header(folder: Path) -> dict[str, Any]:
    """Return the parts of a checkpoint that are not tensors: the position in the data, and the
    non-tensor state of each optimizer.

    Raises:
        CheckpointError: the folder holds something else.
    """
    file = folder / OPTIMIZER_FILE
    try:
        found = json.loads(tensor_files.metadata(file)["state"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{file}: not the state of optimizers: {error}") from error
    assert isinstance(found, dict)
    return found


def keras_optimizer(found: dict[str, Any]) -> str:
    """Return the class of the Keras optimizer; empty if a torch model wrote the header."""
    return str(found.get(_KERAS) or "")

"""The tables of a Keras model: their names, and the embeddings that become tables."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tf_compat.embedding import TableLayer, swap
from tf_compat.names import layers
from torch_edl.tables.initializers import check_drawn, measured
from torch_edl.tables.naming import bind_tables


def tables_of(model: Any) -> list[TableLayer]:
    """Return the layers with tables, named by :func:`~torch_edl.tables.naming.bind_tables`.

    Raises:
        UsageError: two layers of one table differ in size.
    """
    return bind_tables((path, each) for path, each in layers(model) if isinstance(each, TableLayer))


def swap_large(model: Any, threshold: int, *, restored: bool = False) -> list[str]:
    """Replace every ``keras.layers.Embedding`` of more than ``threshold`` elements by a table.

    Layers with features that tables lack stay as they are: constraints, regularizers, masks, LoRA,
    quantized or frozen weights.

    Returns:
        The paths of the replaced layers.

    Args:
        restored: True if the rows come from a checkpoint or another model, so that the current
            weights do not matter.

    Raises:
        UsageError: a layer has weights that are not random initial values, and would be lost.
    """
    swapped = []
    for path, layer in layers(model):
        if type(layer) is keras.layers.Embedding and path and _is_plain(layer):
            weights = np.asarray(layer.embeddings)
            if weights.size > threshold:
                if not restored:
                    check_drawn(path, weights)
                swap(layer, measured(weights))
                swapped.append(path)
    return swapped


def set_defaults(model: Any, max_rows: int, storage_dtype: str) -> None:
    """Set a limit of rows and a storage type for tables for which the user set none."""
    for _, layer in layers(model):
        if isinstance(layer, TableLayer):
            layer.options = layer.options.with_defaults(max_rows, storage_dtype)


def _is_plain(layer: Any) -> bool:
    return bool(
        layer.built and layer.trainable and not layer.mask_zero and not layer.lora_enabled
        and layer.embeddings_constraint is None and layer.embeddings_regularizer is None
        and layer.activity_regularizer is None and getattr(layer, "quantization_mode", None) is None
    )  # fmt: skip

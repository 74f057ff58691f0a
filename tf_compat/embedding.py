"""Keras embeddings over a hash table: any int64 is an id, and rows are created on first use."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np

from tf_compat.names import layers
from tf_compat.rows import TableLayer
from torch_edl.config.training import TrainConfig
from torch_edl.tables.initializers import Initializer, InitializerLike, check_drawn, measured
from torch_edl.tables.options import TableOptions, bind_tables

_unnamed = itertools.count()


class Embedding(TableLayer, keras.layers.Layer):  # type: ignore[misc]
    """Works like ``keras.layers.Embedding``, over a table that grows id by id.

    Args:
        input_dim: number of ids, which are in ``[0, input_dim)``; None: any int64 is an id.
        output_dim: number of elements of a row.
        table: name of the table; None: the path of the layer in the model. Layers of one table
            share its rows.
        initializer: initial value of a new row: ``"uniform"``, ``"normal"``, ``"zeros"``,
            ``"constant"``, ``"xavier_uniform"``, ``"xavier_normal"``, or with arguments
            ``("normal", {"std": 0.01})``.
        mask_zero: True: id 0 is padding, which later layers ignore.
        min_count, max_age, max_rows, max_bytes, storage_dtype, storage: as in
            ``torch_edl.nn.Embedding``.

    Raises:
        UsageError: an argument is out of range.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        *,
        table: str | None = None,
        initializer: InitializerLike = "uniform",
        mask_zero: bool = False,
        min_count: int = 0,
        max_age: int | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        storage_dtype: str | None = None,
        storage: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        limits: dict[str, Any] = {
            "min_count": min_count, "max_age": max_age, "max_rows": max_rows,
            "max_bytes": max_bytes, "storage_dtype": storage_dtype, "storage": storage,
        }  # fmt: skip
        self.options = TableOptions(input_dim, output_dim, initializer, **limits)
        self._given = {
            "input_dim": input_dim, "output_dim": output_dim, "table": table,
            "initializer": initializer, "mask_zero": mask_zero, **limits,
        }  # fmt: skip
        self.is_named = table is not None
        self.table = table or f"embedding-{next(_unnamed)}"
        self.mask_zero = mask_zero
        self.store = None
        self.paths = [self.table]
        self.supports_masking = mask_zero

    def build(self, input_shape: Any = None) -> None:
        """Create the anchor."""
        self.anchor = self.add_weight(shape=(0, self.dim), name="anchor", initializer="zeros")
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return rows (*inputs.shape, output_dim)."""
        return self.look_up(inputs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), **self._given}


class SwappedEmbedding(TableLayer, keras.layers.Embedding):  # type: ignore[misc]
    """A large ``keras.layers.Embedding`` whose weights were replaced by a table."""

    def call(self, inputs: Any) -> Any:
        """Return rows (*inputs.shape, output_dim)."""
        return self.look_up(inputs)


def swap(layer: Any, initializer: Initializer) -> None:
    """Turn a built ``keras.layers.Embedding`` into a layer with a table, in place."""
    weights, dim = layer._embeddings, int(layer.output_dim)
    layer._untrack_variable(weights)
    layer._embeddings = None
    layer.__class__ = SwappedEmbedding
    layer._tracker.unlock()
    layer.anchor = layer.add_weight(shape=(0, dim), name="anchor", initializer="zeros")
    layer._tracker.lock()
    layer.options = TableOptions(int(layer.input_dim), dim, initializer)
    layer.table, layer.is_named = layer.name, False
    layer.store, layer.paths = None, [layer.name]


def tables_of(model: Any) -> list[TableLayer]:
    """Return the layers with tables, named by :func:`~torch_edl.tables.options.bind_tables`.

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


def set_defaults(model: Any, train: TrainConfig) -> None:
    """Apply the job's defaults to the tables of a model."""
    for _, layer in layers(model):
        if isinstance(layer, TableLayer):
            layer.options = layer.options.with_defaults(train)


def _is_plain(layer: Any) -> bool:
    return bool(
        layer.built and layer.trainable and not layer.mask_zero and not layer.lora_enabled
        and layer.embeddings_constraint is None and layer.embeddings_regularizer is None
        and layer.activity_regularizer is None and getattr(layer, "quantization_mode", None) is None
    )  # fmt: skip

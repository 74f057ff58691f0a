"""Keras embeddings over a hash table: any int64 is an id, and rows are created on first use."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_compat.rows import LocalRows, RowStore
from torch_edl.tables.initializers import Initializer, InitializerLike
from torch_edl.tables.options import TableOptions
from torch_edl.tables.row_block import RowBlock
from torch_edl.wire import pserver_pb2 as pb

_unnamed = itertools.count()


class TableLayer:
    """The base of Keras layers with a table."""

    table: str
    """Name of the table."""
    options: TableOptions
    is_named: bool
    """True if the user gave the table its name."""
    anchor: Any
    """Empty variable (0, dim) that represents the table in the gradient."""
    store: RowStore | None
    """Source of the rows; None before the first lookup or the start of a job."""
    paths: list[str]
    """Paths of all layers of this table in the model; set by
    :func:`~torch_edl.tables.naming.bind_tables`."""

    @property
    def dim(self) -> int:
        """Number of elements of a row."""
        return self.options.dim

    def look_up(self, inputs: Any) -> Any:
        """Return rows (*inputs.shape, dim), differentiable with respect to the table."""
        ids = tf.cast(inputs, tf.int64)
        flat = tf.reshape(ids, [-1])
        rows = _lookup(self)(tf.convert_to_tensor(self.anchor), flat)
        shape = tf.concat([tf.shape(ids), [self.dim]], 0)
        found = tf.reshape(rows, shape)
        found.set_shape([*ids.shape, self.dim])
        return found

    def info(self, group: int) -> pb.EmbeddingTableInfo:
        """Return the description of the table; ``group`` is its parameter group."""
        return self.options.info(self.table, group, self.paths)


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
        min_count, max_age, max_rows, max_bytes, storage_dtype: as in ``torch_edl.nn.Embedding``.

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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        limits: dict[str, Any] = {
            "min_count": min_count, "max_age": max_age, "max_rows": max_rows,
            "max_bytes": max_bytes, "storage_dtype": storage_dtype,
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

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the output of :meth:`call`."""
        return (*input_shape, self.dim)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the mask of ids that are no padding; None without ``mask_zero``."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

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


def store_of(layer: TableLayer) -> RowStore:
    """Return the store of the rows of a layer; rows are in this process unless a job sets a
    store."""
    if layer.store is None:
        layer.store = LocalRows(layer, None, 0)
    return layer.store


def _lookup(layer: TableLayer) -> Any:
    """Return the differentiable function from ids to rows.

    The same function works eagerly and in a graph, where it calls the store through
    ``tf.numpy_function``.
    """
    found: list[tuple[RowBlock, npt.NDArray[np.int64]]] = []

    def rows_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        made = store_of(layer).lookup(layer, np.ascontiguousarray(ids))
        if made is None:
            return np.zeros((len(ids), layer.dim), np.float32)
        found[:] = [made]
        block, inverse = made
        return block.gather(inverse)

    def add(upstream: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        ((block, inverse),) = found
        block.add(inverse, np.ascontiguousarray(upstream, np.float32))
        return np.zeros((0, layer.dim), np.float32)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def lookup(anchor: Any, ids: Any) -> Any:
        if tf.executing_eagerly():
            rows = tf.convert_to_tensor(rows_of(ids.numpy()))
        else:
            rows = tf.numpy_function(rows_of, [ids], tf.float32)
            rows.set_shape([None, layer.dim])

        def gradient(upstream: Any) -> Any:
            if tf.executing_eagerly():
                return tf.convert_to_tensor(add(upstream.numpy())), None
            done = tf.numpy_function(add, [upstream], tf.float32)
            done.set_shape([0, layer.dim])
            return done, None

        return rows, gradient

    return lookup

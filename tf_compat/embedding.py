"""Embeddings of Keras over a hash table: any int64 is an id, and rows are created on first use."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_compat.rows import LocalRows, RowBlock, RowStore
from torch_edl.errors import UsageError
from torch_edl.tables.initializers import Initializer, InitializerLike, resolve
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

_unnamed = itertools.count()
_LIMITS = ("min_count", "max_age", "max_rows", "max_bytes")


class TableLayer:
    """What makes a layer of Keras one with a table. ``anchor`` is an empty variable (0, dim) that
    stands for the table in the gradient; the rows are in the store."""

    table: str
    dim: int
    bound: int | None
    is_named: bool
    initializer: Initializer
    storage_dtype: str | None
    limits: dict[str, int]
    anchor: Any
    store: RowStore | None
    paths: list[str]
    """Of all layers of this table in the model; set by :func:`~tf_compat.tables.bind`."""

    def look_up(self, inputs: Any) -> Any:
        """Rows (*inputs.shape, dim), differentiable into the table."""
        ids = tf.cast(inputs, tf.int64)
        flat = tf.reshape(ids, [-1])
        rows = _lookup(self)(tf.convert_to_tensor(self.anchor), flat)
        shape = tf.concat([tf.shape(ids), [self.dim]], 0)
        found = tf.reshape(rows, shape)
        found.set_shape([*ids.shape, self.dim])
        return found

    def info(self, group: int) -> pb.EmbeddingTableInfo:
        """The description of the table; ``group`` is its parameter group."""
        begins = self.initializer
        return pb.EmbeddingTableInfo(
            name=self.table,
            dim=self.dim,
            initializer=pb.Initializer(
                kind=begins.kind, args=dict(begins.args), measured=begins.measured
            ),
            num_embeddings=self.bound or 0,
            group=group,
            modules=self.paths,
            storage_dtype=codec.FLOAT_DTYPES[self.storage_dtype or "fp32"],
            **self.limits,
        )


class Embedding(TableLayer, keras.layers.Layer):  # type: ignore[misc]
    """Like ``keras.layers.Embedding``, over a table that grows id by id.

    Args:
        input_dim: ids are in ``[0, input_dim)``; None: any int64 is an id.
        output_dim: size of a row.
        table: name of the table; by default the path of the layer in the model. Layers of one
            table share its rows.
        initializer: how a new row starts: ``"uniform"``, ``"normal"``, ``"zeros"``,
            ``"constant"``, ``"xavier_uniform"``, ``"xavier_normal"``, or with arguments
            ``("normal", {"std": 0.01})``.
        mask_zero: id 0 is padding, which later layers leave out.
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
        if (input_dim is not None and input_dim < 1) or output_dim < 1:
            raise UsageError(
                f"Embedding({input_dim}, {output_dim}): both must be 1 or more; input_dim None: no "
                "bound"
            )
        if storage_dtype not in (None, *codec.FLOAT_DTYPES):
            raise UsageError(
                f"storage_dtype {storage_dtype!r}: choose one of {', '.join(codec.FLOAT_DTYPES)}"
            )
        given = (min_count, max_age, max_rows, max_bytes)
        for limit, value in zip(_LIMITS, given, strict=True):
            if value is not None and value < (limit != "min_count"):
                raise UsageError(f"{limit} {value}: must be positive, or left out for no limit")
        self.bound, self.dim = input_dim, output_dim
        self.is_named = table is not None
        self.table = table or f"embedding-{next(_unnamed)}"
        self.initializer = resolve(initializer, input_dim, output_dim)
        self.mask_zero = mask_zero
        self.limits = {limit: value or 0 for limit, value in zip(_LIMITS, given, strict=True)}
        self.storage_dtype = storage_dtype
        self.store = None
        self.paths = [self.table]
        self.supports_masking = mask_zero
        self._given = {"table": table, "initializer": initializer}

    def build(self, input_shape: Any = None) -> None:
        """Makes the anchor."""
        self.anchor = self.add_weight(shape=(0, self.dim), name="anchor", initializer="zeros")
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Rows (*inputs.shape, output_dim)."""
        return self.look_up(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Of :meth:`call`."""
        return (*input_shape, self.dim)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """What is not padding, if ids of 0 are."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            **super().get_config(), **self._given, "input_dim": self.bound, "output_dim": self.dim,
            "mask_zero": self.mask_zero, "storage_dtype": self.storage_dtype,
            **{limit: value or None for limit, value in self.limits.items()},
            "min_count": self.limits["min_count"],
        }  # fmt: skip


class SwappedEmbedding(TableLayer, keras.layers.Embedding):  # type: ignore[misc]
    """A large ``keras.layers.Embedding`` whose weights became a table."""

    def call(self, inputs: Any) -> Any:
        """Rows (*inputs.shape, output_dim)."""
        return self.look_up(inputs)


def swap(layer: Any, initializer: Initializer) -> None:
    """Makes a built ``keras.layers.Embedding`` one over a table, in its place in the model."""
    weights, dim = layer._embeddings, int(layer.output_dim)
    layer._untrack_variable(weights)
    layer._embeddings = None
    layer.__class__ = SwappedEmbedding
    layer._tracker.unlock()
    layer.anchor = layer.add_weight(shape=(0, dim), name="anchor", initializer="zeros")
    layer._tracker.lock()
    layer.bound, layer.dim, layer.is_named = int(layer.input_dim), dim, False
    layer.table, layer.initializer, layer.storage_dtype = layer.name, initializer, None
    layer.limits = dict.fromkeys(_LIMITS, 0)
    layer.store, layer.paths = None, [layer.name]


def store_of(layer: TableLayer) -> RowStore:
    """Where the rows of a layer are now: in this process, until a job says otherwise."""
    if layer.store is None:
        layer.store = LocalRows(layer, None, 0)
    return layer.store


def _lookup(layer: TableLayer) -> Any:
    """The differentiable step from ids to rows: the same function eagerly and in a graph, where
    it leaves the graph for the store."""
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
        block.add(inverse, upstream)
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

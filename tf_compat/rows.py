"""Layers with tables, and the rows for their lookups, in this process or on servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.engine.servers.served import Ids, RowLookup, RowPlan, ServedRows
from torch_edl.tables.optimizers import FROZEN, Optimizers
from torch_edl.tables.options import TableOptions
from torch_edl.tables.table import EmbeddingTable, RowBlock, look_up, update
from torch_edl.wire import pserver_pb2 as pb

_UNTRAINED = Optimizers("sgd", ())


class IdLayer:
    """The base of Keras layers from ids to rows."""

    dim: int
    """Number of elements of a row."""
    mask_zero: bool
    """True if id 0 is padding, which later layers ignore."""

    def shaped(self, rows: Any, ids: Any) -> Any:
        """Return the rows (n, dim) of some ids as (*ids.shape, dim)."""
        found = tf.reshape(rows, tf.concat([tf.shape(ids), [self.dim]], 0))
        found.set_shape([*ids.shape, self.dim])
        return found

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the output of ``call``."""
        return (*input_shape, self.dim)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the mask of ids that are no padding; None without ``mask_zero``."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None


class TableLayer(IdLayer):
    """The base of Keras layers with a table."""

    table: str
    """Name of the table."""
    options: TableOptions
    is_named: bool
    """True if the user gave the table its name."""
    anchor: Any
    """Empty variable (0, dim) that represents the table in the gradient."""
    store: KerasLocalRows | KerasServerRows | None
    """Source of the rows; None before the first lookup or the start of a job."""
    paths: list[str]
    """Paths of all layers of this table in the model; set by
    :func:`~torch_edl.tables.options.bind_tables`."""

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.options.dim

    def look_up(self, inputs: Any) -> Any:
        """Return rows (*inputs.shape, dim), differentiable with respect to the table."""
        ids = tf.cast(inputs, tf.int64)
        flat = tf.reshape(ids, [-1])
        rows = _lookup(self)(tf.convert_to_tensor(self.anchor), flat)
        return self.shaped(rows, ids)

    def info(self, group: int) -> pb.EmbeddingTableInfo:
        """Return the description of the table; ``group`` is its parameter group."""
        return self.options.info(self.table, group, self.paths)


def _lookup(layer: TableLayer) -> Any:
    """Return the differentiable function from ids to rows.

    The same function works eagerly and in a graph, where it calls the store through
    ``tf.numpy_function``.
    """
    found: list[tuple[RowBlock, npt.NDArray[np.int64]]] = []

    def rows_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        if layer.store is None:  # outside of a job
            layer.store = KerasLocalRows(layer, None, 0)
        made = layer.store.lookup(layer, np.ascontiguousarray(ids))
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


class KerasLocalRows:
    """The rows of one table in this process.

    Args:
        kernel: kernel of the optimizer; None: rows are looked up but not trained.
        seed: seed of initial rows, which are a function of seed, table and id.
    """

    def __init__(self, layer: TableLayer, kernel: pb.OptimizerConfig | None, seed: int) -> None:
        self.training = True
        """True if lookups create rows for new ids."""
        self._optimizers = _UNTRAINED if kernel is None else Optimizers.from_proto(kernel)
        group = FROZEN if kernel is None else 0
        self.table = EmbeddingTable(layer.info(group), seed, self._optimizers)
        self._used: list[tuple[Ids, RowBlock]] = []

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids]:
        """Return a block of rows, and the indices (n,) of the ids in the block."""
        check_range(layer, ids)
        unique, values, inverse = look_up(self.table, ids, training=self.training)
        block = RowBlock(values)
        if self.training:
            self._used.append((unique, block))
        return block, inverse

    def step(self, rates: Sequence[float]) -> None:
        """Update the rows that received gradients since the last step."""
        used, self._used = self._used, []
        update(self.table, used, rates)

    def forget(self) -> None:
        """Drop the gradients since the last step."""
        self._used = []

    def restore(self, source: CheckpointReader) -> None:
        """Restore rows, slots and step from a checkpoint."""
        self.table = source.restore_table(self.table.declared, self._optimizers)


def check_range(layer: TableLayer, ids: Ids) -> None:
    """Raise an error if an id is outside of the bound of a table."""
    if layer.options.bound is not None and len(ids):
        low, high = int(ids.min()), int(ids.max())
        layer.options.check_range(layer.table, low, high, argument="input_dim")


@dataclass
class KerasCall(RowLookup):
    """Implements :class:`~torch_edl.engine.servers.served.RowLookup`."""

    layer: Any


KerasPlan = RowPlan[KerasCall, RowBlock]


class KerasServerRows(ServedRows[KerasCall, KerasPlan]):
    """The rows of all tables of a model, on servers.

    Args:
        forward: runs the model eagerly on the features of a minibatch; None: the model has no
            tables.
    """

    training = True

    def __init__(self, forward: Callable[[Any], Any] | None) -> None:
        super().__init__(lambda calls, servers: RowPlan(calls, servers, RowBlock))
        self._forward = forward
        self._noted: dict[bytes, Ids] = {}

    def lookup(self, layer: Any, ids: Ids) -> tuple[RowBlock, Ids] | None:
        """Return a block of rows, and the indices (n,) of the ids in the block; None while a plan
        only records which ids are looked up."""
        check_range(layer, ids)
        if self._planning is not None:
            # Lookups of the same ids share one array.
            values = self._noted.setdefault(ids.tobytes(), ids.copy())
            self._note(self._planning, KerasCall(layer.table, layer.dim, values, layer))
            return None
        assert self._plan is not None
        assert self._pull is not None, "a forward pass before the servers are known"
        calls, position = self._plan.calls[self._batch], self._call
        self._call += 1
        if position < len(calls):
            call = calls[position]
            if call.layer is layer and np.array_equal(call.values, ids):
                return self._plan.find(self._batch, position)
        return self._plan.pull(RowLookup(layer.table, layer.dim, ids), self._pull)

    def _find(self, batches: Sequence[Any]) -> KerasPlan:
        return self._new_plan([self._calls(each) for each in batches], self._servers)

    def _calls(self, features: Any) -> list[KerasCall]:
        self._noted = {}
        return [] if self._forward is None else self._dry_run(self._forward, features)

"""Exports a trained model to a Keras file or a SavedModel, with the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_compat.contract import KerasContract, load_contract
from tf_compat.embedding import tables_of
from tf_compat.replica import load_values
from tf_compat.rows import IdLayer, TableLayer
from tf_compat.trained import TrainedModel
from torch_edl.checkpoint.reader import CheckpointReader, SavedTable
from torch_edl.errors import CheckpointError, ContractError, describe_error


@keras.saving.register_keras_serializable(package="tf_compat")
class FilledEmbedding(IdLayer, keras.layers.Layer):  # type: ignore[misc]
    """An embedding with a fixed set of ids; any other id has a row of zeros.

    The ids are all ids of a table with a bound, or else those that training has seen.

    Args:
        rows: number of ids.
        dim: number of elements of a row.
    """

    def __init__(self, rows: int, dim: int, mask_zero: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows, self.dim, self.mask_zero = rows, dim, mask_zero
        self.supports_masking = mask_zero

    def build(self, input_shape: Any = None) -> None:
        """Create the variables; the ids must be assigned in ascending order."""
        self.ids = self.add_weight(
            shape=(self.rows,), dtype="int64", initializer="zeros", trainable=False, name="ids"
        )
        self.vectors = self.add_weight(
            shape=(self.rows, self.dim), initializer="zeros", name="vectors"
        )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return rows (*inputs.shape, dim)."""
        wanted = tf.cast(inputs, tf.int64)
        flat = tf.reshape(wanted, [-1])
        known, vectors = tf.convert_to_tensor(self.ids), tf.convert_to_tensor(self.vectors)
        place = tf.minimum(tf.searchsorted(known, flat), self.rows - 1)
        hit = tf.equal(tf.gather(known, place), flat)
        rows = tf.where(hit[:, None], tf.gather(vectors, place), 0.0)
        return self.shaped(rows, wanted)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        about = {"rows": self.rows, "dim": self.dim, "mask_zero": self.mask_zero}
        return {**super().get_config(), **about}


def export(source: Path, model_file: str, target: Path) -> str:
    """Write a trained model as ``NAME.keras``, or else as the folder of a SavedModel.

    Returns:
        A text for the user that says what was written.

    Raises:
        ContractError: the model file violates the contract, or Keras cannot write its model.
        CheckpointError: the values are damaged, or belong to another model.
    """
    contract = load_contract(model_file)
    with _inputs() as seen:
        model = contract.make_model()
    reader = CheckpointReader(source, values_only=True)
    trained = TrainedModel(model, contract.make_optimizer())
    load_values(trained, reader, source)
    layers = tables_of(model)
    rows = sum(_fill(layer, reader, source) for layer in layers)
    unbounded = {each.table for each in layers if not reader.tables[each.table].bound}
    try:
        _write(model, seen.get(id(model)), target)
    except Exception as error:
        raise _unwritten(contract, target, error) from error
    elements = sum(int(np.prod(place.shape)) for place in trained.places)
    said = f"{target}: {elements:,} dense elements, {rows:,} rows of tables"
    if unbounded:
        named = ", ".join(sorted(unbounded))
        said += f"; {named}: rows of zeros for ids that training has not seen"
    return said


def _write(model: Any, inputs: Any, target: Path) -> None:
    if target.suffix == ".keras":
        model.save(target)
        return
    signature = None
    if inputs is not None and not getattr(model, "inputs", None):  # a subclassed model
        signature = [tf.nest.map_structure(_any_batch, inputs)]
    model.export(str(target), verbose=False, input_signature=signature)


def _any_batch(value: Any) -> Any:
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _unwritten(contract: KerasContract, target: Path, error: Exception) -> ContractError:
    other = "" if target.suffix != ".keras" else "; a folder as FILE becomes a SavedModel"
    return ContractError(
        f"{target}: Keras cannot write the model of {contract.path}: {describe_error(error)}{other}"
    )


def _fill(layer: TableLayer, reader: CheckpointReader, source: Path) -> int:
    """Copy the rows of a table into the layer, and return their number."""
    saved = reader.tables.get(layer.table)
    if saved is None:
        known = ", ".join(reader.tables) or "none"
        raise CheckpointError(f"{source}: no table {layer.table} (tables there: {known})")
    dim = layer.dim
    ids, vectors = _rows(saved, dim)
    made: Any = layer
    made._untrack_variable(made.anchor)
    made.anchor = None
    made.__class__ = FilledEmbedding
    made.rows, made.dim = len(ids), dim
    made._tracker.unlock()
    FilledEmbedding.build(made)  # the bound ``build`` of the instance is that of its first class
    made._tracker.lock()
    made.ids.assign(ids)
    made.vectors.assign(vectors)
    return len(ids)


def _rows(saved: SavedTable, dim: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return all rows of a table, sorted by id; one row of zeros if there are none.

    With a bound, rows that training has not seen have their initial values.
    """
    if saved.bound:
        return np.arange(saved.bound), saved.weight()
    ids, vectors = [np.zeros(0, np.int64)], [np.zeros((0, dim), np.float32)]
    for _, rows in saved.rows():
        ids.append(rows.ids)
        vectors.append(rows.vectors)
    found, values = np.concatenate(ids), np.concatenate(vectors)
    if not len(found):
        return np.zeros(1, np.int64), np.zeros((1, dim), np.float32)
    order = np.argsort(found)
    return found[order], values[order]


@contextmanager
def _inputs() -> Iterator[dict[int, Any]]:
    """Record the first input of each model by its ``id``.

    A subclassed model does not declare the types of its inputs anywhere else.
    """
    seen: dict[int, Any] = {}
    call = keras.Model.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            seen.setdefault(id(self), args[0])
        return call(self, *args, **kwargs)

    keras.Model.__call__ = noted
    try:
        yield seen
    finally:
        del keras.Model.__call__

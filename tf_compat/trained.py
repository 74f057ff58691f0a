"""A Keras model and its optimizer: its variables under their names, its tables, and the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_compat.names import VariableName, places
from tf_compat.optimizers import learning_rates, optimizer_config
from tf_compat.rows import LocalRows
from tf_compat.tables import tables_of


class TrainedModel:
    """What training changes.

    Args:
        model: with all its variables; its large embeddings are swapped.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self.tables = tables_of(model)
        self.places: list[VariableName] = places(model, {id(layer): layer for layer in self.tables})
        self.gradients: dict[str, Any] = {}
        """Of the minibatch in hand, by the name of the variable; a variable that the loss does not
        depend on has none."""
        self.trained = [place for place in self.places if place.trainable]
        """Those that gradients move."""
        anchors = [layer.anchor for layer in self.tables if layer.anchor.trainable]
        self.variables = [*(place.variable for place in self.trained), *anchors]
        """What the tape watches: those of ``places`` that are trained, and the tables."""
        optimizer.build([place.variable for place in self.trained])
        self._before: list[Callable[[], None]] = []
        self._on_gradients: list[Callable[[], None]] = []

    def before_step(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Calls ``hook`` before each step; returns what ends that."""
        self._before.append(hook)
        return lambda: self._before.remove(hook)

    def on_gradients(self, hook: Callable[[], None]) -> None:
        """Calls ``hook`` when :meth:`take` has the gradients of a minibatch."""
        self._on_gradients.append(hook)

    def take(self, gradients: Sequence[Any]) -> None:
        """Takes the gradients of ``variables``; those of tables are in their stores."""
        pairs = zip(self.trained, gradients, strict=False)
        self.gradients = {place.name: _summed(g) for place, g in pairs if g is not None}
        for hook in self._on_gradients:
            hook()

    def step(self) -> None:
        """Moves the model by the gradients in hand, unless a hook took them."""
        for hook in self._before:
            hook()
        local = self.local_rows()
        if local:
            rates = learning_rates(self.optimizer, int(self.optimizer.iterations))
            for rows in local:
                rows.step(rates or [float(self.optimizer.learning_rate)])
        pairs = [(self.gradients[p.name], p.variable) for p in self.trained
                 if p.name in self.gradients]  # fmt: skip
        if pairs:
            self.optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])
        elif local:
            self.optimizer.iterations.assign_add(1)
        self.gradients = {}

    def local_rows(self) -> list[LocalRows]:
        """The tables of this process, each once."""
        found = {id(each.store): each.store for each in self.tables}
        return [rows for rows in found.values() if isinstance(rows, LocalRows)]

    def hold_rows(self, seed: int) -> None:
        """Keeps the rows of all tables in this process.

        Raises:
            UnsupportedOptimizerError: there are tables, and no kernel for their rows.
        """
        if not self.tables:
            return
        kernel = optimizer_config(self.optimizer)
        stores: dict[str, LocalRows] = {}
        for layer in self.tables:
            if layer.table not in stores:
                stores[layer.table] = LocalRows(layer, kernel, seed)
            layer.store = stores[layer.table]

    def set_training(self, training: bool) -> None:
        """Whether lookups make rows of ids that have none."""
        for layer in self.tables:
            if layer.store is not None:
                layer.store.training = training


def _summed(gradient: Any) -> Any:
    """A gradient in which each row comes once. Keras adds the squares of slices, so that an id that
    comes twice in a minibatch would have another step than on servers, in a ring or in torch."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def dense(gradient: Any) -> Any:
    """A gradient as a tensor; that of a small ``keras.layers.Embedding`` comes as slices."""
    return tf.convert_to_tensor(gradient)

"""A Keras model with its optimizer: named variables, tables, and the update step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_compat.names import VariableName, places
from tf_compat.optimizers import learning_rates, optimizer_config
from tf_compat.rows import LocalRows
from tf_compat.tables import tables_of


class TrainedModel:
    """The state that training changes.

    Args:
        model: built model, whose large embeddings were already replaced by tables.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self.tables = tables_of(model)
        self.places: list[VariableName] = places(model, {id(layer): layer for layer in self.tables})
        self.gradients: dict[str, Any] = {}
        """Gradients of the current minibatch by the name of the variable; a variable without an
        effect on the loss has none."""
        self.trained = [place for place in self.places if place.trainable]
        """The variables that gradients change."""
        anchors = [layer.anchor for layer in self.tables if layer.anchor.trainable]
        self.variables = [*(place.variable for place in self.trained), *anchors]
        """The variables that the tape watches: those of ``trained``, and the anchors of tables."""
        optimizer.build([place.variable for place in self.trained])
        self._before: list[Callable[[], None]] = []
        self._on_gradients: list[Callable[[], None]] = []

    def before_step(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Call ``hook`` before each step, and return a function that removes the hook."""
        self._before.append(hook)
        return lambda: self._before.remove(hook)

    def on_gradients(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` whenever :meth:`take` has set the gradients of a minibatch."""
        self._on_gradients.append(hook)

    def take(self, gradients: Sequence[Any]) -> None:
        """Set the gradients of ``variables``; the stores have those of tables."""
        pairs = zip(self.trained, gradients, strict=False)
        self.gradients = {place.name: _summed(g) for place, g in pairs if g is not None}
        for hook in self._on_gradients:
            hook()

    def step(self) -> None:
        """Update the model with the current gradients."""
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
        """Return the stores of tables in this process, each once."""
        found = {id(each.store): each.store for each in self.tables}
        return [rows for rows in found.values() if isinstance(rows, LocalRows)]

    def hold_rows(self, seed: int) -> None:
        """Create stores in this process for the rows of all tables.

        Raises:
            UnsupportedOptimizerError: the model has tables, and no kernel implements its optimizer.
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
        """Set whether lookups create rows for new ids."""
        for layer in self.tables:
            if layer.store is not None:
                layer.store.training = training


def _summed(gradient: Any) -> Any:
    """Return a gradient in which each row appears once.

    Keras would add the squares of repeated slices, so an id that appears twice in a minibatch would
    have another step than on servers, in a ring or in torch.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor; a small ``keras.layers.Embedding`` has slices."""
    return tf.convert_to_tensor(gradient)

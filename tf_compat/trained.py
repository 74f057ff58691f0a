"""A Keras model with its optimizer: named variables, tables, the update step, and the kernel that
makes the same step on servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_compat.embedding import tables_of
from tf_compat.names import VariableName, places
from tf_compat.rows import KerasLocalRows
from torch_edl.errors import UnsupportedOptimizerError
from torch_edl.wire import pserver_pb2 as pb


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

    def local_rows(self) -> list[KerasLocalRows]:
        """Return the stores of tables in this process, each once."""
        found = {id(each.store): each.store for each in self.tables}
        return [rows for rows in found.values() if isinstance(rows, KerasLocalRows)]

    def hold_rows(self, seed: int) -> None:
        """Create stores in this process for the rows of all tables.

        Raises:
            UnsupportedOptimizerError: the model has tables, and no kernel implements its optimizer.
        """
        if not self.tables:
            return
        kernel = optimizer_config(self.optimizer)
        stores: dict[str, KerasLocalRows] = {}
        for layer in self.tables:
            if layer.table not in stores:
                stores[layer.table] = KerasLocalRows(layer, kernel, seed)
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


_Hyper = dict[str, float]


def _sgd(o: Any) -> _Hyper:
    return {"momentum": o.momentum, "nesterov": float(o.nesterov)}


def _adagrad(o: Any) -> _Hyper:
    # Keras divides by the root of (sum + eps), which equals an initial sum increased by eps.
    return {"initial_accumulator_value": o.initial_accumulator_value + o.epsilon, "eps": 0.0}


def _adam(o: Any) -> _Hyper:
    return {
        "beta1": o.beta_1, "beta2": o.beta_2, "eps": o.epsilon, "amsgrad": float(o.amsgrad),
        "weight_decay": o.weight_decay or 0.0,
    }  # fmt: skip


def _rmsprop(o: Any) -> _Hyper:
    return {
        "alpha": o.rho, "eps": o.epsilon, "momentum": o.momentum, "centered": float(o.centered)
    }  # fmt: skip


def _ftrl(o: Any) -> _Hyper:
    return {
        "lr_power": o.learning_rate_power, "l1": o.l1_regularization_strength,
        "l2": o.l2_regularization_strength, "beta": o.beta,
        "initial_accumulator_value": o.initial_accumulator_value,
    }  # fmt: skip


_KERNELS: dict[type, tuple[str, Callable[[Any], _Hyper]]] = {
    keras.optimizers.SGD: ("sgd", _sgd),
    keras.optimizers.Adagrad: ("adagrad", _adagrad),
    keras.optimizers.Adam: ("keras_adam", _adam),
    keras.optimizers.AdamW: ("keras_adam", _adam),
    keras.optimizers.RMSprop: ("keras_rmsprop", _rmsprop),
    keras.optimizers.Ftrl: ("ftrl", _ftrl),
}
# Options that change gradients or variables in ways that the servers do not implement.
_REFUSED = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "l2_shrinkage_regularization_strength",
)


def optimizer_config(optimizer: Any) -> pb.OptimizerConfig:
    """Return the compiled kernel of a Keras optimizer with its hyperparameters, as one group.

    Raises:
        UnsupportedOptimizerError: no kernel implements the class, or one of its options.
    """
    name = type(optimizer).__name__
    found = _KERNELS.get(type(optimizer))
    if found is None:
        supported = ", ".join(kind.__name__ for kind in _KERNELS)
        raise UnsupportedOptimizerError(
            f"optimizer {name}: parameter servers and the tables of tf_compat have no kernel for "
            f"it; use one of {supported} of keras.optimizers"
        )
    kind, hyper = found
    refused = [option for option in _REFUSED if getattr(optimizer, option, None)]
    if optimizer.weight_decay and kind != "keras_adam":
        refused.append("weight_decay")
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        refused.append("exclude_from_weight_decay")
    if schedule(optimizer) is not None and getattr(optimizer, "momentum", None):
        # Keras adds gradients to the momentum after multiplication by the rate of their step; the
        # kernels multiply the momentum by the current rate.
        refused.append("momentum with a schedule")
    if refused:
        raise UnsupportedOptimizerError(
            f"{name}({', '.join(refused)}): parameter servers and the tables of tf_compat have no "
            "kernel with that; leave it out"
        )
    config = pb.OptimizerConfig(kind=kind)
    group = config.groups.add()
    for key, value in {"lr": float(optimizer.learning_rate), **hyper(optimizer)}.items():
        group.hyper[key] = float(value)
    return config


def schedule(optimizer: Any) -> Any | None:
    """Return the ``LearningRateSchedule`` of an optimizer; None if its rate is a number."""
    rate = optimizer._learning_rate
    return rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None


def learning_rates(optimizer: Any, step: int) -> Sequence[float]:
    """Return the rate of the step after ``step``; empty if the rate is constant."""
    found = schedule(optimizer)
    return [] if found is None else [float(found(step))]

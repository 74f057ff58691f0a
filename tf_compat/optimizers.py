"""Maps Keras optimizers to the compiled kernels, with their learning rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from torch_edl.errors import UnsupportedOptimizerError
from torch_edl.wire import pserver_pb2 as pb

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

"""Runs one minibatch through the functions of a model file: forward, loss and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_compat.contract import KerasContract, TensorFlowValues, describe
from tf_compat.names import layers
from tf_compat.trained import TrainedModel
from torch_edl.data.batch import slice_tensors
from torch_edl.errors import EdlError, UserCodeError, describe_error
from torch_edl.interfaces import Batch, Engine
from torch_edl.training.diagnostics import LayerLog, not_finite, the_one

Backward = Callable[[], list[Any]]


class KerasStep:
    """Runs single minibatches through the user's model, with checks.

    Args:
        on_nan: ``stop`` raises NanLossError, ``skip`` skips the minibatch.
        compiled: True: run the step as one graph (``tf.function``); False: run it eagerly.
        log_layers: glob pattern for names of layers whose outputs are logged periodically.
        apart: returns a context in which ``feed`` draws no random numbers in another thread.
    """

    def __init__(
        self,
        contract: KerasContract,
        trained: TrainedModel,
        *,
        on_nan: str,
        compiled: bool,
        log_layers: str = "",
        apart: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._layers = WatchedLayers(trained.model, log_layers)
        self._contract = contract
        self._trained = trained
        self._on_nan = on_nan
        self._compiled = compiled
        self._apart = apart
        self._whole = tf.function(self._compute, reduce_retracing=True) if compiled else None
        self._forward = tf.function(self.call, reduce_retracing=True) if compiled else self.call

    def call(self, features: Any) -> Any:
        """Return the predictions for a minibatch, computed in evaluation mode."""
        with self._apart():
            return self._trained.model(features, training=False)

    def predict(self, features: Any) -> Any:
        """Return the predictions for a minibatch.

        Raises:
            UserCodeError: the model raised.
        """
        try:
            return self._forward(features)
        except EdlError:
            raise
        except (Exception, SystemExit) as error:
            raise self._blamed("the model", error, features=features) from error

    def loss(self, batch: Batch) -> tuple[float, Backward] | None:
        """Return the loss of a minibatch, and a function that computes the gradients.

        The loss is a finite number and includes the penalties of the model. The gradients are those
        of ``trained.variables``. The result is None if the minibatch is to be skipped.

        Raises:
            UserCodeError: the user's code raised, or returned no scalar.
            NanLossError: the loss is not finite.
        """
        self._layers.begin()
        total, backward = self._in_graph(batch) if self._whole else self._eagerly(batch)
        value = float(total)
        if not math.isfinite(value):
            if self._on_nan == "stop":
                raise not_finite(f"the loss is {value}", batch, TensorFlowValues().array)
            return None
        return value, backward

    def _in_graph(self, batch: Batch) -> tuple[Any, Backward]:
        assert self._whole is not None
        try:
            total, gradients = self._whole(batch.features, batch.labels)
        except (Exception, SystemExit) as error:
            fed = {"features": batch.features, "labels": batch.labels}
            raise self._blamed("the model or loss", error, **fed) from error
        return total, lambda: list(gradients)

    def _compute(self, features: Any, labels: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            with self._layers.training():
                predictions = self._trained.model(features, training=True)
            total = self._with_penalties(self._contract.loss(labels, predictions))
        return total, tape.gradient(total, self._trained.variables)

    def _eagerly(self, batch: Batch) -> tuple[Any, Backward]:
        with tf.GradientTape() as tape:
            try:
                with self._layers.training():
                    predictions = self._trained.model(batch.features, training=True)
            except EdlError:
                raise
            except (Exception, SystemExit) as error:
                raise self._blamed("the model", error, features=batch.features) from error
            try:
                loss = self._contract.loss(batch.labels, predictions)
            except (Exception, SystemExit) as error:
                fed = {"labels": batch.labels, "predictions": predictions}
                blamed = self._blamed("loss", error, **fed)
                blamed.sample = self._the_one(batch, predictions)
                raise blamed from error
            total = self._with_penalties(loss)

        def backward() -> list[Any]:
            try:
                return list(tape.gradient(total, self._trained.variables))
            except Exception as error:
                raise UserCodeError(f"the gradient raised {describe_error(error)}") from error

        return total, backward

    def _the_one(self, batch: Batch, predictions: Any) -> int | None:
        """Return the only sample whose loss cannot be computed; None if there is no single one."""

        def fails(index: int) -> bool:
            labels, predicted = (
                slice_tensors(each, index, index + 1, tf.convert_to_tensor)
                for each in (batch.labels, predictions)
            )
            return not math.isfinite(self._contract.loss(labels, predicted))

        return the_one(batch.size, fails)

    def _with_penalties(self, loss: Any) -> Any:
        if not tf.is_tensor(loss) or math.prod(loss.shape) != 1:
            raise UserCodeError(
                f"loss returned {describe(loss)}; expected a scalar tensor: tf.reduce_mean(...) of "
                "the losses of the samples"
            )
        return tf.add_n([tf.reshape(loss, []), *self._trained.model.losses])

    def _blamed(self, what: str, error: BaseException, **fed: Any) -> UserCodeError:
        shown = ", ".join(f"{name} {describe(value)}" for name, value in fed.items())
        return UserCodeError(f"{what} raised {describe_error(error)} ({shown})")


def body(step: KerasStep, engine: Engine, trained: TrainedModel) -> Callable[[Batch], float]:
    """See :meth:`~torch_edl.training.user_model.UserModel.body`."""

    def compute(batch: Batch) -> float:
        made = step.loss(batch) if batch.size else None
        backward = None if made is None else partial(_take, trained, made[1])
        if engine.backward(backward):
            trained.step()
        return math.nan if made is None else made[0]

    return compute


def _take(trained: TrainedModel, backward: Backward) -> None:
    trained.take(backward())


class WatchedLayers:
    """The layers whose names match a pattern; names are those of torch, see ``--log-layers``."""

    def __init__(self, model: Any, pattern: str) -> None:
        found = {path: layer for path, layer in layers(model) if path}
        self._log = LayerLog(pattern, list(found))
        self._training = False
        for path in self._log.watched:
            found[path].call = self._watched(path, found[path].call)

    def begin(self) -> None:
        """Record that the training of the next minibatch begins."""
        self._log.count += 1

    @contextmanager
    def training(self) -> Iterator[None]:
        """Log outputs of calls within this context, which train or trace a graph for training."""
        self._training = True
        try:
            yield
        finally:
            self._training = False

    def _watched(self, path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def note(values: npt.NDArray[Any]) -> None:
            if self._log.due:
                many, deviates = values.astype(np.float64), values.size > 1
                spread = float(many.std(ddof=1)) if deviates else 0.0
                self._log.log(path, values.shape, many.mean(), spread, many.min(), many.max())

        def called(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            if self._training and tf.is_tensor(output):
                if tf.executing_eagerly():
                    note(output.numpy())
                else:  # the graph calls the function in each step
                    tf.numpy_function(note, [output], [])
            return output

        return called

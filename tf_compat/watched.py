"""Logs the outputs of Keras layers during training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_compat.names import layers
from torch_edl.training.layer_log import LayerLog


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

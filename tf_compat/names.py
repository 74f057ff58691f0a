"""Names and layouts of the variables of a Keras model outside of TensorFlow.

Servers, checkpoints and exported models use the names and layouts of torch's ``state_dict``:
``deep.0.weight`` (out, in), where Keras has a kernel (in, out). A model with the same parameters in
both frameworks is therefore one model: workers of both can train it, and each can read the
checkpoints of the other. A layer is named after the attribute that holds it; in a ``Sequential`` or
a functional model, after the name that the user gave it, or else after its position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from torch_edl.data.trees import leaves
from torch_edl.errors import UsageError

Array = npt.NDArray[Any]

# By class of the layer: the axes of its kernel in Keras, in the order of torch.
_KERNELS: list[tuple[type, tuple[int, ...]]] = [
    (keras.layers.Dense, (1, 0)),
    (keras.layers.Conv1D, (2, 1, 0)),
    (keras.layers.Conv2D, (3, 2, 0, 1)),
    (keras.layers.Conv3D, (4, 3, 0, 1, 2)),
]
_NORMS = (keras.layers.BatchNormalization, keras.layers.LayerNormalization)
_NORM_NAMES = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


@dataclass(frozen=True)
class VariableName:
    """The name and the layout of a variable of a model."""

    name: str
    """Name in the ``state_dict``."""
    variable: Any
    """The ``keras.Variable``."""
    axes: tuple[int, ...] | None
    """Axes of the variable in the order of torch; None: the order is the same."""
    is_buffer: bool
    """True if the layer assigns the variable, such as the moving mean of a normalization, and no
    gradient changes it."""

    @property
    def trainable(self) -> bool:
        """True if gradients change the variable; False if it is frozen or a buffer."""
        return not self.is_buffer and bool(self.variable.trainable)

    def outside(self, value: Array) -> Array:
        """Return a value or a gradient of the variable in the layout of the ``state_dict``."""
        return value if self.axes is None else value.transpose(self.axes)

    def inside(self, value: Array) -> Array:
        """Return a value in the layout of Keras, the inverse of :meth:`outside`."""
        return value if self.axes is None else value.transpose(np.argsort(self.axes))

    @property
    def value(self) -> Array:
        """The current value in the layout of the ``state_dict``."""
        return self.outside(np.asarray(self.variable))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the layout of the ``state_dict``."""
        shape = tuple(int(size) for size in self.variable.shape)
        return shape if self.axes is None else tuple(shape[axis] for axis in self.axes)

    def assign(self, value: Array) -> None:
        """Assign a value that has the layout of the ``state_dict``."""
        self.variable.assign(self.inside(value))


def layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield all layers of a model with their paths, the model itself first; each layer once."""
    seen: set[int] = set()

    def walk(layer: Any, path: str) -> Iterator[tuple[str, Any]]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        yield path, layer
        for name, part in _parts(layer):
            yield from walk(part, f"{path}.{name}" if path else name)

    return walk(model, "")


def places(model: Any, tables: Mapping[int, Any]) -> list[VariableName]:
    """Return the variables of a model, except those of tables, sorted by name.

    Args:
        tables: layers with tables, by their ``id``.

    Raises:
        UsageError: two variables have the same name.
    """
    found: dict[str, VariableName] = {}
    for path, layer in layers(model):
        if id(layer) in tables:
            continue
        buffers = layer._non_trainable_variables
        for variable in (*layer._trainable_variables, *buffers):
            name, axes = _named(layer, variable)
            is_buffer = any(variable is each for each in buffers)
            place = VariableName(f"{path}.{name}" if path else name, variable, axes, is_buffer)
            if place.name in found:
                raise UsageError(
                    f"two variables are called {place.name!r}; give one of the layers another name"
                )
            found[place.name] = place
    return [found[name] for name in sorted(found)]


def _named(layer: Any, variable: Any) -> tuple[str, tuple[int, ...] | None]:
    name = str(variable.name)
    if name == "kernel":
        for kind, axes in _KERNELS:
            # Subclasses, such as transposed convolutions, may have other axes.
            if type(layer) is kind:
                return "weight", axes
    if name == "embeddings" and isinstance(layer, keras.layers.Embedding):
        return "weight", None
    if isinstance(layer, _NORMS):
        return _NORM_NAMES.get(name, name), None
    return name, None


def _parts(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct sublayers of a layer with their names."""
    children = list(layer._flatten_layers(include_self=False, recursive=False))
    if isinstance(layer, keras.Sequential) or type(layer).__name__ == "Functional":
        for number, child in enumerate(layer.layers):
            yield (str(number) if _is_automatic(child) else child.name), child
        return
    known = {id(child) for child in children}
    for name, value in vars(layer).items():
        if not name.startswith("_"):
            for path, leaf in leaves(value):
                if id(leaf) in known:
                    yield ".".join(map(str, (name, *path))), leaf
    for child in children:  # layers under private names, or added in another way
        yield child.name, child


def _is_automatic(layer: Any) -> bool:
    """Return True if Keras chose the name of the layer, from its class and a counter."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(layer).__name__)
    return re.fullmatch(rf"{snake.lower()}(_\d+)?", layer.name) is not None

"""A Keras model whose parameters are on servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_compat.names import VariableName
from tf_compat.rows import KerasPlan, KerasServerRows
from tf_compat.trained import TrainedModel, dense, learning_rates, optimizer_config
from torch_edl.errors import UsageError
from torch_edl.ps_client.client import BUFFER_GROUP
from torch_edl.ps_client.partition import DenseGradient, DenseSegment, Floats
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

Array = npt.NDArray[Any]

_FLAT = {"float32", "float16", "bfloat16"}
_FROZEN = -1


class ServedKerasModel:
    """Implements :class:`~torch_edl.engine.servers.served.ServedModel`.

    Args:
        forward: runs the model eagerly on the features of a minibatch, in evaluation mode.
        steps_at: returns the number of minibatches before a version of the servers.
    """

    is_script = False

    def __init__(
        self,
        trained: TrainedModel,
        forward: Callable[[Any], Any],
        *,
        steps_at: Callable[[int], int] = int,
    ) -> None:
        self.model = trained.model
        self.kernel = optimizer_config(trained.optimizer)
        self._trained = trained
        self._steps_at = steps_at
        self.rows = KerasServerRows(forward if trained.tables else None)
        for layer in trained.tables:
            layer.store = self.rows
        self._places = {place.name: place for place in trained.places}
        for place in trained.places:
            _check_type(place)
        self._exact: dict[str, Array] = {}
        self._flats: list[_Flat] = []

    def attach(
        self, before_step: Callable[[], None], on_gradient: Callable[[], None] | None
    ) -> None:
        self._trained.before_step(before_step)

    def initial(self) -> Sequence[pb.DenseParameter]:
        return [
            pb.DenseParameter(
                name=name,
                value=codec.to_proto(np.require(_value(place), requirements="C")),
                group=_group(place),
            )
            for name, place in self._places.items()
        ]

    def tables(self) -> Sequence[pb.EmbeddingTableInfo]:
        found = {}
        for layer in self._trained.tables:
            found[layer.table] = layer.info(0 if layer.anchor.trainable else _FROZEN)
        return list(found.values())

    def connect(
        self,
        layout: Sequence[Sequence[DenseSegment]],
        exact: Mapping[str, Array],
        memory: Callable[[int, int], Floats],
    ) -> None:
        self._flats = [
            _Flat(self._places, segments, partial(memory, server))
            for server, segments in enumerate(layout)
        ]
        self._exact = {name: value.copy() for name, value in exact.items()}
        for name, value in self._exact.items():
            self._places[name].assign(value)

    def load(self, values: Sequence[Floats | None]) -> None:
        for flat, each in zip(self._flats, values, strict=True):
            if each is not None:
                flat.load(each)

    def forget(self, *, gradients: bool = True) -> None:
        for flat in self._flats:
            flat.reached.clear()
        if gradients:
            self._trained.gradients = {}

    def collect(self, plan: KerasPlan, *, last: bool, lost: bool) -> None:
        if not lost:
            for flat in self._flats:
                flat.collect(self._trained.gradients)
        if last:
            self._trained.gradients = {}

    def dense_gradients(self) -> list[DenseGradient]:
        return [flat.take() for flat in self._flats]

    def exact_changes(self) -> Mapping[str, Array]:
        changed = {}
        for name, place in self._places.items():
            if not _is_flat(place):
                value, given = place.value, self._exact.get(name)
                if given is None or not np.array_equal(value, given):
                    # The value is sent with every later push, since no answer tells which pushes
                    # were applied.
                    self._exact.pop(name, None)
                    changed[name] = value
        return changed

    def learning_rates(self, version: int) -> Sequence[float]:
        return learning_rates(self._trained.optimizer, self._steps_at(version))

    def forbid_accumulation(self) -> None:
        raise AssertionError("this is for scripts, which are of torch")


class _Flat:
    """The dense parameters of one server as a flat vector.

    Args:
        memory: returns memory (n,) for a gradient, whose content is undefined.
    """

    def __init__(
        self,
        places: Mapping[str, VariableName],
        segments: Sequence[DenseSegment],
        memory: Callable[[int], Floats],
    ) -> None:
        self._parts = [(places[s.name], s, slice(s.start, s.start + s.size)) for s in segments]
        self._new_gradient = partial(memory, sum(s.size for s in segments))
        self._gradient = self._new_gradient()
        self.reached: set[int] = set()
        """Numbers of the parts for which a minibatch of the update has a gradient."""

    def load(self, values: Floats) -> None:
        for place, segment, span in self._parts:
            value = values[span].reshape(segment.shape)
            place.assign(value.astype(place.variable.dtype, copy=False))

    def collect(self, gradients: Mapping[str, Any]) -> None:
        for number, (place, _, span) in enumerate(self._parts):
            found = gradients.get(place.name)
            if found is None:
                continue
            gradient = place.outside(np.asarray(dense(found), np.float32)).reshape(-1)
            if number in self.reached:
                self._gradient[span] += gradient
            else:
                self._gradient[span] = gradient
                self.reached.add(number)

    def take(self) -> DenseGradient:
        for number, (place, _, span) in enumerate(self._parts):
            if place.is_buffer:
                self._gradient[span] = _value(place).reshape(-1)
                self.reached.add(number)
        untouched = [n for n in range(len(self._parts)) if n not in self.reached]
        self.reached.clear()
        gradient, self._gradient = self._gradient, self._new_gradient()
        return DenseGradient(gradient, untouched)


def _group(place: VariableName) -> int:
    if place.is_buffer:
        return BUFFER_GROUP
    return 0 if place.trainable else _FROZEN


def _is_flat(place: VariableName) -> bool:
    return place.variable.dtype in _FLAT


def _value(place: VariableName) -> Array:
    return place.value.astype(np.float32) if _is_flat(place) else place.value


def _check_type(place: VariableName) -> None:
    if place.trainable and not _is_flat(place):
        raise UsageError(
            f"parameter {place.name}: {place.variable.dtype}; parameter servers train in float32: "
            "make the layer with dtype='float32', or use --strategy local"
        )

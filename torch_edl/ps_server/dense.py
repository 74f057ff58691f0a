"""The dense parameters of a shard: one flat vector in the order of their names."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.ps_server.files import Array
from torch_edl.ps_server.optimizers import BUFFER, Optimizers
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Parameter:
    """One dense parameter and its place in the vector."""

    name: str
    shape: tuple[int, ...]
    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class DenseState:
    """A copy of everything, as of one moment."""

    values: dict[str, Floats]
    """Name to value; slots as ``NAME@SLOT``."""
    step: int


class DenseShard:
    """Values and optimizer state. Each call is atomic.

    Raises:
        UsageError: parameters out of order, of a wrong dtype, or in a group that is not there.
    """

    def __init__(self, parameters: Sequence[pb.DenseParameter], optimizers: Optimizers) -> None:
        self._lock = threading.Lock()
        self._optimizers = optimizers
        self._step = 0
        names = [p.name for p in parameters]
        if names != sorted(set(names)):
            raise UsageError("dense parameters: send each once, sorted by name")
        self.parameters: list[Parameter] = []
        values = []
        start = 0
        for message in parameters:
            value = codec.from_proto(message.value)
            if value.dtype != np.float32:
                raise UsageError(f"parameter {message.name}: {value.dtype}, expected float32")
            stop = start + value.size
            self.parameters.append(Parameter(message.name, value.shape, message.group, start, stop))
            values.append(value.reshape(-1))
            start = stop
        self.flat: Floats = np.concatenate(values) if values else np.empty(0, np.float32)
        # Neighbours of one group are updated in one call: (group, start, stop).
        self._runs: list[tuple[int, int, int]] = []
        for group, run in groupby(self.parameters, key=lambda p: p.group):
            members = list(run)
            self._runs.append((group, members[0].start, members[-1].stop))
        # Groups may keep different slots (momentum in one only), so each slot is a whole vector.
        self._slots: dict[str, Floats] = {}
        for group, start, stop in self._runs:
            kernel = optimizers.kernel(group, f"parameter {self._at(start).name}")
            if kernel is None:
                continue
            for name, initial in zip(kernel.slots, kernel.slot_initial, strict=True):
                slot = self._slots.setdefault(name, np.zeros_like(self.flat))
                slot[start:stop] = initial

    def _at(self, start: int) -> Parameter:
        return next(p for p in self.parameters if p.stop > start or p.start == start)

    def layout(self) -> list[tuple[str, tuple[int, ...], int]]:
        """(name, shape, group) of each parameter: what other workers must agree with."""
        return [(p.name, p.shape, p.group) for p in self.parameters]

    @contextmanager
    def reading(self) -> Iterator[Floats]:
        """The flat vector (n,) itself; no update changes it while the block runs."""
        with self._lock:
            yield self.flat

    def check(self, gradient: Floats) -> None:
        """Raises UsageError unless ``gradient`` (n,) fits and is finite where it is trained."""
        if gradient.shape != self.flat.shape:
            raise UsageError(
                f"dense gradient of {gradient.size} values: this shard has {self.flat.size}"
            )
        for group, start, stop in self._runs:
            if group < 0:
                continue
            bad = _core.first_nonfinite(gradient[start:stop])
            if bad >= 0:
                name = next(p.name for p in self.parameters if p.stop > start + bad)
                raise UsageError(
                    f"parameter {name}: its gradient has the value {gradient[start + bad]}; "
                    "it must be finite"
                )

    def apply(
        self, gradient: Floats, rates: Sequence[float], untouched: Set[int] = frozenset()
    ) -> None:
        """One update with ``gradient`` (n,), checked before; at buffers it holds values.

        Args:
            untouched: places of parameters that keep their values and slots, as torch leaves a
                parameter alone whose ``grad`` is None.
        """
        with self._lock:
            self._step += 1
            runs = self._runs if not untouched else self._touched(untouched)
            for group, start, stop in runs:
                if group == BUFFER:
                    self.flat[start:stop] = gradient[start:stop]
                elif group >= 0:
                    kernel = self._optimizers.groups[group].kernel
                    _core.dense_apply(
                        kernel,
                        self.flat[start:stop],
                        gradient[start:stop],
                        [self._slots[s][start:stop] for s in kernel.slots],
                        rates[group],
                        self._step,
                    )

    def _touched(self, untouched: Set[int]) -> list[tuple[int, int, int]]:
        return [
            (p.group, p.start, p.stop)
            for place, p in enumerate(self.parameters)
            if place not in untouched
        ]

    def state(self) -> DenseState:
        """A copy of values and slots."""
        with self._lock:
            values = {}
            for p in self.parameters:
                values[p.name] = self.flat[p.start : p.stop].reshape(p.shape).copy()
                kernel = self._optimizers.kernel(p.group, p.name)
                for slot in kernel.slots if kernel else ():
                    part = self._slots[slot][p.start : p.stop]
                    values[f"{p.name}@{slot}"] = part.reshape(p.shape).copy()
            return DenseState(values, self._step)

    def restore(self, values: Mapping[str, Array], step: int) -> None:
        """Takes values by name, and slots where they are given; all others keep theirs.

        Raises:
            UsageError: a value is missing or of another shape.
        """
        with self._lock:
            for p in self.parameters:
                self.flat[p.start : p.stop] = _fitting(values, p.name, p.shape)
                for slot, vector in self._slots.items():
                    key = f"{p.name}@{slot}"
                    if key in values:
                        vector[p.start : p.stop] = _fitting(values, key, p.shape)
            self._step = step

    @property
    def bytes(self) -> int:
        """Memory of values and slots."""
        return self.flat.nbytes * (1 + len(self._slots))


def _fitting(values: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    value = values.get(name)
    if value is None:
        raise UsageError(f"parameter {name}: not in what is restored; is it of this model?")
    if value.shape != shape:
        raise UsageError(f"parameter {name}: restored {value.shape}, the model has {shape}")
    return value.reshape(-1)

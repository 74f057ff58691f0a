"""The dense parameters of a shard: one flat vector in the order of their names."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.tables.exact import Array
from torch_edl.tables.optimizers import BUFFER, Optimizers
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

    values: dict[str, Array]
    """Name to value; slots as ``NAME@SLOT``, updates so far as ``NAME@step``."""
    step: int
    """The largest of them."""


@dataclass(frozen=True)
class _Run:
    """Neighbours that are updated in one call."""

    group: int
    start: int
    stop: int
    step: int
    """Updates that they have had."""


class DenseShard:
    """Values and optimizer state. Each call is atomic.

    Raises:
        UsageError: parameters out of order, of a wrong dtype, or in a group that is not there.
    """

    def __init__(self, parameters: Sequence[pb.DenseParameter], optimizers: Optimizers) -> None:
        self._lock = threading.Lock()
        self._optimizers = optimizers
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
        # As torch.optim counts: what a loss does not reach for a while is as young after it.
        self._steps = np.zeros(len(self.parameters), np.int64)
        self._runs = self._runs_of(range(len(self.parameters)))
        self.assigned = [slice(run.start, run.stop) for run in self._runs if run.group == BUFFER]
        """Where a push has new values of buffers in place of gradients."""
        self._all_trained = [(run.start, run.stop) for run in self._runs if run.group >= 0]
        # Groups may keep different slots (momentum in one only), so each slot is a whole vector.
        self._slots: dict[str, Floats] = {}
        for p in self.parameters:
            kernel = optimizers.kernel(p.group, f"parameter {p.name}")
            if kernel is None:
                continue
            for name, initial in zip(kernel.slots, kernel.slot_initial, strict=True):
                slot = self._slots.setdefault(name, np.zeros_like(self.flat))
                slot[p.start : p.stop] = initial

    def _runs_of(self, places: Iterable[int]) -> list[_Run]:
        """Of the parameters at ``places``, in order; those of one run share group and step."""
        runs: list[_Run] = []
        for place in places:
            p, step = self.parameters[place], int(self._steps[place])
            last = runs[-1] if runs else None
            if last and (last.group, last.step, last.stop) == (p.group, step, p.start):
                runs[-1] = replace(last, stop=p.stop)
            else:
                runs.append(_Run(p.group, p.start, p.stop, step))
        return runs

    def layout(self) -> list[tuple[str, tuple[int, ...], int]]:
        """(name, shape, group) of each parameter: what other workers must agree with."""
        return [(p.name, p.shape, p.group) for p in self.parameters]

    @contextmanager
    def reading(self) -> Iterator[Floats]:
        """The flat vector (n,) itself; no update changes it while the block runs."""
        with self._lock:
            yield self.flat

    def check(self, gradient: Floats, untouched: Set[int] = frozenset()) -> None:
        """Raises UsageError unless ``gradient`` (n,) fits and is finite where it is trained.

        Args:
            untouched: see :meth:`apply`.
        """
        if gradient.shape != self.flat.shape:
            raise UsageError(
                f"dense gradient of {gradient.size} values: this shard has {self.flat.size}"
            )
        if untouched and not 0 <= min(untouched) <= max(untouched) < len(self.parameters):
            raise UsageError(
                f"without_gradient {sorted(untouched)}: this shard has {len(self.parameters)} "
                "dense parameters, counted from 0"
            )
        for start, stop in self._trained(untouched):
            bad = _core.first_nonfinite(gradient[start:stop])
            if bad >= 0:
                name = next(p.name for p in self.parameters if p.stop > start + bad)
                raise UsageError(
                    f"parameter {name}: its gradient has the value {gradient[start + bad]}; "
                    "it must be finite"
                )

    def _trained(self, untouched: Set[int]) -> list[tuple[int, int]]:
        """Where (start, stop) a push brings gradients."""
        if not untouched:
            return self._all_trained
        places = enumerate(self.parameters)
        return [(p.start, p.stop) for i, p in places if i not in untouched and p.group >= 0]

    def apply(
        self, gradient: Floats, rates: Sequence[float], untouched: Set[int] = frozenset()
    ) -> None:
        """One update with ``gradient`` (n,), checked before; at buffers it holds values.

        Args:
            untouched: places of parameters that keep their values and slots, as torch leaves a
                parameter alone whose ``grad`` is None; ``gradient`` says nothing there.
        """
        with self._lock:
            every = range(len(self.parameters))
            touched = [place for place in every if place not in untouched] if untouched else every
            for run in self._runs_of(touched) if untouched else self._runs:
                here = slice(run.start, run.stop)
                if run.group == BUFFER:
                    self.flat[here] = gradient[here]
                elif run.group >= 0:
                    kernel = self._optimizers.groups[run.group].kernel
                    slots = [self._slots[name][here] for name in kernel.slots]
                    rate, step = rates[run.group], run.step + 1
                    _core.dense_apply(kernel, self.flat[here], gradient[here], slots, rate, step)
            self._steps[touched] += 1
            if untouched:
                self._runs = self._runs_of(every)
            else:
                self._runs = [replace(run, step=run.step + 1) for run in self._runs]

    def without(self, gradient: Floats, untouched: Set[int]) -> Floats:
        """A copy of ``gradient`` (n,) that is zero at the parameters ``untouched``."""
        copy = gradient.copy()
        for place in untouched:
            copy[self.parameters[place].start : self.parameters[place].stop] = 0
        return copy

    def state(self) -> DenseState:
        """A copy of values and slots."""
        with self._lock:
            values: dict[str, Array] = {}
            for place, p in enumerate(self.parameters):
                values[p.name] = self.flat[p.start : p.stop].reshape(p.shape).copy()
                kernel = self._optimizers.kernel(p.group, p.name)
                for slot in kernel.slots if kernel else ():
                    part = self._slots[slot][p.start : p.stop]
                    values[f"{p.name}@{slot}"] = part.reshape(p.shape).copy()
                if kernel:
                    values[f"{p.name}@step"] = np.array(self._steps[place])
            return DenseState(values, int(self._steps.max(initial=0)))

    def restore(self, values: Mapping[str, Array], step: int) -> None:
        """Takes values by name, and slots where they are given; all others keep theirs.

        Args:
            step: updates so far of those for which ``values`` does not say.

        Raises:
            UsageError: a value is missing or of another shape.
        """
        with self._lock:
            for place, p in enumerate(self.parameters):
                self.flat[p.start : p.stop] = _fitting(values, p.name, p.shape)
                for slot, vector in self._slots.items():
                    key = f"{p.name}@{slot}"
                    if key in values:
                        vector[p.start : p.stop] = _fitting(values, key, p.shape)
                self._steps[place] = int(values.get(f"{p.name}@step", step))
            self._runs = self._runs_of(range(len(self.parameters)))

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

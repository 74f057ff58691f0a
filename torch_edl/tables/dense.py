"""The dense parameters and buffers of one shard.

All float32 values are in one flat vector, sorted by name. Buffers of other types are stored beside
the vector. No optimizer trains a buffer: the worker that changed a buffer sends the new value with
its push.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.tables.optimizers import BUFFER, Optimizers
from torch_edl.tables.table import Floats
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

Array = npt.NDArray[Any]

PIECE = 1 << 18
"""Number of values that are copied under one lock, which takes less than a millisecond."""
_PAUSE_S = 0.001  # without a pause, a snapshot takes the lock again before a waiting update
_VALUES = ""  # key of the values; the other keys of a snapshot are names of slots

_SAME_MODEL = "use the model file of the job that wrote it, with the same arguments after --"


@dataclass(frozen=True)
class Parameter:
    """A float32 parameter or buffer and its range ``[start, stop)`` in the flat vector."""

    name: str
    shape: tuple[int, ...]
    group: int
    start: int
    stop: int


@dataclass(slots=True)
class _Run:
    """Adjacent parameters of one group that are updated in one call."""

    group: int
    start: int
    stop: int
    step: int
    """Number of updates that each of the parameters has had."""


class DenseShard:
    """The dense values of a shard and their optimizer state. Each call is atomic.

    Args:
        frames: contents of values that are sent beside the message.

    Raises:
        UsageError: the parameters are not sorted, have a type that cannot be trained, or name a
            group that does not exist.
    """

    def __init__(
        self,
        parameters: Sequence[pb.DenseParameter],
        optimizers: Optimizers,
        frames: codec.Frames = (),
    ) -> None:
        self.lock = threading.Lock()
        """Lock of all values; an update holds it."""
        self.optimizers = optimizers
        names = [p.name for p in parameters]
        if names != sorted(set(names)):
            raise UsageError("dense parameters: send each once, sorted by name")
        self.parameters: list[Parameter] = []
        values = []
        start = 0
        self._exact: dict[str, Array] = {}
        """Buffers that are not float32, by name. An array is replaced, never changed in place."""
        self._groups = {p.name: p.group for p in parameters}
        self._aliases = {alias: p.name for p in parameters for alias in p.aliases}
        for message in parameters:
            value = codec.from_proto(message.value, frames)
            if value.dtype != np.float32:
                if message.group >= 0:
                    raise UsageError(
                        f"parameter {message.name}: {value.dtype}; servers train float32 only"
                    )
                self._exact[message.name] = value
                continue
            stop = start + value.size
            self.parameters.append(Parameter(message.name, value.shape, message.group, start, stop))
            values.append(value.reshape(-1))
            start = stop
        self.flat: Floats = np.concatenate(values) if values else np.empty(0, np.float32)
        # Counted for each parameter, as in torch.optim: no gradient, no update.
        self._steps = np.zeros(len(self.parameters), np.int64)
        self._runs = self._runs_of(range(len(self.parameters)))
        self.assigned = [slice(run.start, run.stop) for run in self._runs if run.group == BUFFER]
        """Ranges of the float32 buffers. A push holds new values there instead of gradients."""
        self.trained = [(run.start, run.stop) for run in self._runs if run.group >= 0]
        """Ranges of the trained parameters; a push must be finite there."""
        self._snapshot: Callable[[], _Snapshot | None] = lambda: None
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
        """Group the parameters at ``places`` (ascending indices) into runs."""
        runs: list[_Run] = []
        for place in places:
            p, step = self.parameters[place], int(self._steps[place])
            last = runs[-1] if runs else None
            if last and (last.group, last.step, last.stop) == (p.group, step, p.start):
                last.stop = p.stop
            else:
                runs.append(_Run(p.group, p.start, p.stop, step))
        return runs

    def layout(self) -> list[tuple[str, tuple[int, ...], int, str]]:
        """Return (name, shape, group, dtype) of each value. All workers must share it."""
        exact = self._exact.items()
        return [
            *((p.name, p.shape, p.group, "float32") for p in self.parameters),
            *((name, v.shape, self._groups[name], v.dtype.name) for name, v in exact),
        ]

    def copy(self, room: codec.Room | None = None) -> Floats:
        """Return a copy of the flat vector (n,), in ``room`` if it has enough memory."""
        memory = room.take(self.flat.nbytes) if room else None
        out = np.empty_like(self.flat) if memory is None else memory.view(np.float32)
        with self.lock:
            np.copyto(out, self.flat)
        return out

    def check(self, gradient: Floats, untouched: Set[int] = frozenset()) -> None:
        """Raise UsageError unless ``gradient`` (n,) has the right size and finite trained values.

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
        for run in self._touched(untouched):
            bad = _core.first_nonfinite(gradient[run.start : run.stop]) if run.group >= 0 else -1
            if bad >= 0:
                name = next(p.name for p in self.parameters if p.stop > run.start + bad)
                raise UsageError(
                    f"parameter {name}: its gradient has the value {gradient[run.start + bad]}; "
                    "it must be finite"
                )

    def _touched(self, untouched: Set[int]) -> list[_Run]:
        """Return the runs that a push changes."""
        if not untouched:
            return self._runs
        places = range(len(self.parameters))
        return self._runs_of(place for place in places if place not in untouched)

    def apply(
        self,
        gradient: Floats,
        rates: Sequence[float],
        untouched: Set[int] = frozenset(),
    ) -> None:
        """Apply one update with ``gradient`` (n,), which :meth:`check` has accepted.

        At the ranges of buffers, ``gradient`` holds the new values.

        Args:
            untouched: indices of the parameters that keep their values and slots, as parameters
                do whose ``grad`` is None in torch; ``gradient`` is ignored there.
        """
        with self.lock:
            for run in self._touched(untouched):
                for part in self._parts(slice(run.start, run.stop)):
                    self._update(run, part, gradient, rates)
            self._steps += 1
            if untouched:
                self._steps[list(untouched)] -= 1
                self._runs = self._runs_of(range(len(self.parameters)))
            else:
                for run in self._runs:
                    run.step += 1

    def _parts(self, here: slice) -> Iterator[slice]:
        """Yield ranges of ``here`` that may be changed, once an open snapshot has copied them."""
        snapshot = self._snapshot()
        return snapshot.before_change(here) if snapshot else iter((here,))

    def _update(self, run: _Run, here: slice, gradient: Floats, rates: Sequence[float]) -> None:
        if run.group == BUFFER:
            self.flat[here] = gradient[here]
        elif run.group >= 0:
            kernel = self.optimizers.groups[run.group]
            slots = [self._slots[name][here] for name in kernel.slots]
            rate, step = rates[run.group], run.step + 1
            _core.dense_apply(kernel, self.flat[here], gradient[here], slots, rate, step)

    def decode_exact(self, pushed: Iterable[pb.DenseParameter]) -> dict[str, Array]:
        """Decode the buffers that a push assigns.

        Raises:
            UsageError: a name is unknown, or a buffer has another type or shape.
        """
        decoded = {p.name: codec.from_proto(p.value) for p in pushed}
        for name, value in decoded.items():
            here = self._exact.get(name)
            if here is None or (here.dtype, here.shape) != (value.dtype, value.shape):
                has = "nothing" if here is None else f"{here.dtype} of shape {here.shape}"
                raise UsageError(
                    f"buffer {name}: {value.dtype} of shape {value.shape}; this server has {has}"
                )
        return decoded

    def assign_exact(self, values: Mapping[str, Array]) -> None:
        """Store the buffers that :meth:`decode_exact` returned."""
        if values:
            with self.lock:
                self._exact.update(values)

    def exact_to_proto(self) -> list[pb.DenseParameter]:
        """Return the buffers that are not float32 as messages."""
        with self.lock:
            values = dict(self._exact)
        return [
            pb.DenseParameter(name=name, value=codec.to_proto(value), group=self._groups[name])
            for name, value in values.items()
        ]

    def begin_snapshot(self) -> Callable[[], dict[str, Array]]:
        """Start a snapshot of the current state, in microseconds.

        Until the returned function has been released, each update first copies the values that it
        changes.

        Returns:
            A function that copies the state by name: slots are ``NAME@SLOT``, the number of updates
            is ``NAME@step``. A tied weight is listed under each of its names.
        """
        with self.lock:
            snapshot = _Snapshot({**self._slots, _VALUES: self.flat}, self.lock)
            self._snapshot = weakref.ref(snapshot)
            exact, steps = dict(self._exact), self._steps.copy()
        return lambda: self._state(snapshot.finish(), exact, steps)

    def _state(
        self, vectors: Mapping[str, Floats], exact: dict[str, Array], steps: npt.NDArray[np.int64]
    ) -> dict[str, Array]:
        values = exact
        for place, p in enumerate(self.parameters):
            values[p.name] = vectors[_VALUES][p.start : p.stop].reshape(p.shape)
            kernel = self.optimizers.kernel(p.group, p.name)
            for slot in kernel.slots if kernel else ():
                values[f"{p.name}@{slot}"] = vectors[slot][p.start : p.stop].reshape(p.shape)
            if kernel:
                values[f"{p.name}@step"] = np.array(steps[place])
        return values | {alias: values[name] for alias, name in self._aliases.items()}

    def restore(self, values: Mapping[str, Array]) -> None:
        """Restore values by name, and slots if ``values`` has them; other slots do not change.

        Raises:
            UsageError: a value is missing or of another shape.
        """
        with self.lock:
            for name, here in self._exact.items():
                self._exact[name] = _fitting(values, name, here.shape).astype(here.dtype)
            for place, p in enumerate(self.parameters):
                self.flat[p.start : p.stop] = _fitting(values, p.name, p.shape).reshape(-1)
                for slot, vector in self._slots.items():
                    key = f"{p.name}@{slot}"
                    if key in values:
                        vector[p.start : p.stop] = _fitting(values, key, p.shape).reshape(-1)
                self._steps[place] = int(values.get(f"{p.name}@step", 0))
            self._runs = self._runs_of(range(len(self.parameters)))


def _fitting(values: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    value = values.get(name)
    if value is None:
        raise UsageError(f"{name}: not in the saved model; {_SAME_MODEL}")
    if value.shape != shape:
        raise UsageError(
            f"{name}: {value.shape} in the saved model, {shape} in this one; {_SAME_MODEL}"
        )
    return value


class _Snapshot:
    """A consistent copy of vectors, made while updates continue: each piece is copied once, in
    :meth:`finish` or just before an update.

    Args:
        vectors: the vectors, all of one length.
        lock: the lock that every change of the vectors needs. The caller holds the lock.
    """

    def __init__(self, vectors: Mapping[str, Floats], lock: threading.Lock) -> None:
        self._lock = lock
        self._pairs = {name: (live, np.empty_like(live)) for name, live in vectors.items()}
        size = max(live.size for live in vectors.values())
        self._missing = set(range(-(-size // PIECE)))

    def before_change(self, part: slice) -> Iterator[slice]:
        """Copy ``part`` piece by piece; a piece may be changed after it was yielded.

        The caller must hold the lock.
        """
        for number in range(part.start // PIECE, -(-part.stop // PIECE)):
            self._copy(number)
            yield slice(max(part.start, number * PIECE), min(part.stop, (number + 1) * PIECE))

    def _copy(self, number: int) -> None:
        if number in self._missing:
            here = slice(number * PIECE, (number + 1) * PIECE)
            for live, copy in self._pairs.values():
                copy[here] = live[here]
            self._missing.remove(number)

    def finish(self) -> dict[str, Floats]:
        """Copy the remaining pieces and return the copies of the vectors."""
        for number in sorted(self._missing):
            with self._lock:
                self._copy(number)
            time.sleep(_PAUSE_S)
        return {name: copy for name, (_, copy) in self._pairs.items()}

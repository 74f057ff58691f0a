"""Random numbers of the user's ``feed``, as a pure function of the job's seed and the task.

A repeated task must have its records in the same order; otherwise some records would be trained
twice and others never. The global generators are therefore seeded before ``feed`` is called, and
restored afterwards. Generators that only the user can seed are detected by comparing the first
records of all attempts on a task (:func:`order_of`).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_ROWS, _COLUMNS = 4096, 64  # limits of the compared part of a tensor
_TOLERANCE = 1e-4
"""Largest difference by rounding on other processors; another order differs by about 1."""


@dataclass(frozen=True)
class Generator:
    """A global generator of random numbers."""

    seed: Callable[[int], Any]
    """Seeds the generator with 63 bits."""
    state: Callable[[], Any]
    """Returns the state of the generator; states are equal if nothing was drawn in between."""
    restore: Callable[[Any], Any]
    """Sets the state of the generator to a value of ``state``."""


_PYTHON = Generator(random.seed, random.getstate, random.setstate)
_NUMPY = Generator(
    lambda seed: np.random.seed(seed % 2**32), np.random.get_state, np.random.set_state
)


class Generators:
    """The global random number generators of a process.

    ``feed`` and training run in two threads. Training draws from the framework's generator too
    (dropout). If ``feed`` uses this generator, ``feed`` and code in :meth:`apart` exclude each
    other. If the first ``feed`` of a training task in this process does not use the framework's
    generator, the generator is not seeded for later tasks.

    Args:
        framework: generator of the model file's framework.
    """

    def __init__(self, framework: Generator) -> None:
        self._all: list[Generator] = [_PYTHON, _NUMPY, framework]
        self._framework = framework
        self._lock = threading.RLock()
        self._is_drawn: bool | None = None

    def of_task(self, seed: int, epoch: int, task: int) -> TaskRandom:
        """Return the random numbers of a task in a job with this seed."""
        digest = hashlib.blake2b(f"{seed}/{epoch}/{task}".encode(), digest_size=8).digest()
        return TaskRandom(self, int.from_bytes(digest, "little") >> 1)

    def apart(self) -> AbstractContextManager[Any]:
        """Return a context in which ``feed`` does not draw from the framework's generator."""
        return contextlib.nullcontext() if self._is_drawn is False else self._lock

    @contextmanager
    def of_feed(
        self, seed: int, states: dict[Generator, Any], *, trains: bool
    ) -> Iterator[dict[Generator, Any]]:
        """Return a context for a call of ``feed``, in which the generators are seeded; see
        :meth:`continued`.

        Args:
            trains: True for a training task. Other tasks do not show whether ``feed`` uses the
                framework's generator, since it may draw random numbers only in training.
        """
        with self._lock:
            judges = trains and self._is_drawn is None
            uses_framework = judges or self._is_drawn is True
            used = [g for g in self._all if g is not self._framework or uses_framework]
            with self.continued(seed, states, used) as begun:
                try:
                    yield begun
                finally:
                    if judges:
                        self._is_drawn = self._framework.state() != begun[self._framework]

    @contextmanager
    def continued(
        self, seed: int, states: dict[Generator, Any], used: Sequence[Generator] = ()
    ) -> Iterator[dict[Generator, Any]]:
        """Return a context in which generators continue from ``states``, which is updated at the
        end, when the generators are restored. The value of the context is their states at the
        start.

        Args:
            seed: seed of generators without a state.
            used: the generators; empty: all.
        """
        used = used or self._all
        with self._lock:
            outside = [generator.state() for generator in used]
            try:
                for generator in used:
                    if generator in states:
                        generator.restore(states[generator])
                    else:
                        generator.seed(seed)
                yield {generator: generator.state() for generator in used}
            finally:
                states |= {generator: generator.state() for generator in used}
                for generator, state in zip(used, outside, strict=True):
                    generator.restore(state)


class TaskRandom:
    """The random numbers of one task, from a seed of 63 bits: the same in each attempt."""

    def __init__(self, generators: Generators, seed: int) -> None:
        self._generators = generators
        self.seed = seed
        self._states: dict[Generator, Any] = {}
        self.is_drawn = False
        """True if ``feed`` drew from a global generator, so that its samples may be shuffled."""

    @contextmanager
    def of_feed(self, *, trains: bool) -> Iterator[None]:
        """Return a context for a call of ``feed``; ``trains`` is True for a training task."""
        with self._generators.of_feed(self.seed, self._states, trains=trains) as begun:
            yield
        self.is_drawn = any(map(_differ, begun.values(), map(self._states.get, begun)))

    def iterate(self, iterator: Iterator[T]) -> Iterator[T]:
        """Yield the items of an iterator that may draw random numbers for each item."""
        while True:
            with self._generators.continued(self.seed, self._states):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item


def order_of(features: Any, labels: Any) -> float:
    """Return a number that differs for other records, or for another order of the records.

    The number depends on all labels, and on integer features such as ids and tokens. Images and
    floats are ignored: the user may augment them with other generators without training a record
    twice.
    """
    total, count, at = 0.0, 0, 0
    arrays = [array for part in _parts(labels) if (array := _array(part, "biuf")) is not None]
    for part in _parts(features):
        if (array := _array(part, "iu")) is not None and array.ndim <= 2:
            arrays.append(array)
    weights = np.random.Generator(np.random.PCG64(0)).random((2, _ROWS))
    for array in arrays:
        table = np.nan_to_num(array[:_ROWS].reshape(min(len(array), _ROWS), -1)[:, :_COLUMNS])
        table = table.astype(np.float64)
        low, spread = table.min(axis=0), np.ptp(table, axis=0)
        table = np.divide(table - low, spread, out=np.zeros_like(table), where=spread > 0)
        rows, columns = table.shape
        # Each column has another weight, since one column may be the complement of another.
        weight = np.take(weights[1], range(at, at + columns), mode="wrap")
        total += float(weights[0, :rows] @ table @ weight)
        count, at = count + table.size, at + columns
    return total / math.sqrt(count) if count else 0.0


def is_same_order(one: float, other: float) -> bool:
    """Return True if two values of :func:`order_of` belong to the same records in the same
    order."""
    return abs(one - other) <= _TOLERANCE


def _differ(one: Any, other: Any) -> bool:
    return pickle.dumps(one) != pickle.dumps(other)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _parts(value[key])
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def _array(part: Any, kinds: str) -> np.ndarray[Any, Any] | None:
    """Return a dense, non-empty CPU tensor as an array; None for other values, or if its
    ``dtype.kind`` is not in ``kinds``."""
    try:
        array = np.asarray(part)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in kinds and array.ndim and array.size else None

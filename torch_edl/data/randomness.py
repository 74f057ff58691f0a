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
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")

_ROWS, _COLUMNS = 4096, 64  # limits of the compared part of a tensor
_TOLERANCE = 1e-4
"""Largest difference by rounding on other processors; another order differs by about 1."""


class Generator(Protocol):
    """A global generator of random numbers."""

    def seed(self, seed: int) -> None:
        """Seed the generator; ``seed`` has 63 bits."""
        ...

    def state(self) -> Any:
        """Return the state of the generator; states are equal if nothing was drawn in between."""
        ...

    def restore(self, state: Any) -> None:
        """Set the state of the generator to a value of :meth:`state`."""
        ...


class _Python:
    def seed(self, seed: int) -> None:
        random.seed(seed)

    def state(self) -> Any:
        return random.getstate()

    def restore(self, state: Any) -> None:
        random.setstate(state)


class _Numpy:
    def seed(self, seed: int) -> None:
        np.random.seed(seed % 2**32)

    def state(self) -> Any:
        return np.random.get_state()

    def restore(self, state: Any) -> None:
        np.random.set_state(state)


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
        self._all: list[Generator] = [_Python(), _Numpy(), framework]
        self._framework = framework
        self._lock = threading.RLock()
        self._is_drawn: bool | None = None

    def of_task(self, seed: int, epoch: int, task: int) -> TaskRandom:
        """Return the random numbers of a task.

        Args:
            seed: seed of the job.
        """
        digest = hashlib.blake2b(f"{seed}/{epoch}/{task}".encode(), digest_size=8).digest()
        return TaskRandom(self, int.from_bytes(digest, "little") >> 1)

    def apart(self) -> AbstractContextManager[Any]:
        """Return a context in which ``feed`` does not draw from the framework's generator."""
        return contextlib.nullcontext() if self._is_drawn is False else self._lock

    @contextmanager
    def of_feed(
        self, seed: int, *, trains: bool
    ) -> Iterator[tuple[dict[Generator, Any], dict[Generator, Any]]]:
        """Return a context for a call of ``feed``, in which the generators are seeded. The
        generators are restored afterwards.

        Yields two dicts by generator: the states at the start, and the states at the end, which
        are added when the context ends.

        Args:
            trains: True for a training task. Other tasks do not show whether ``feed`` uses the
                framework's generator, since it may draw random numbers only in training.
        """
        states: dict[Generator, Any] = {}
        with self._lock:
            judges = trains and self._is_drawn is None
            uses_framework = judges or self._is_drawn is True
            used = [g for g in self._all if g is not self._framework or uses_framework]
            with _restored(used):
                for generator in used:
                    generator.seed(seed)
                begun = {generator: generator.state() for generator in used}
                try:
                    yield begun, states
                finally:
                    states |= {generator: generator.state() for generator in used}
                    if judges:
                        self._is_drawn = states[self._framework] != begun[self._framework]

    @contextmanager
    def continued(self, seed: int, states: dict[Generator, Any]) -> Iterator[None]:
        """Return a context in which the generators continue from ``states``. ``states`` is updated
        at the end, and the generators are restored.

        Args:
            seed: seed of generators without a state.
        """
        with self._lock, _restored(self._all):
            for generator in self._all:
                if generator in states:
                    generator.restore(states[generator])
                else:
                    generator.seed(seed)
            try:
                yield
            finally:
                states |= {generator: generator.state() for generator in self._all}


@contextmanager
def _restored(generators: list[Generator]) -> Iterator[None]:
    outside = [generator.state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, outside, strict=True):
            generator.restore(state)


class TaskRandom:
    """The random numbers of one task, the same in each attempt on the task.

    Args:
        seed: seed of the task, of 63 bits.
    """

    def __init__(self, generators: Generators, seed: int) -> None:
        self._generators = generators
        self.seed = seed
        self._states: dict[Generator, Any] = {}
        self.is_drawn = False
        """True if ``feed`` drew from a global generator, so that its samples may be shuffled."""

    @contextmanager
    def of_feed(self, *, trains: bool) -> Iterator[None]:
        """Return a context for a call of ``feed``; ``trains`` is True for a training task."""
        with self._generators.of_feed(self.seed, trains=trains) as (begun, self._states):
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
    """Return a dense, non-empty CPU tensor as an array; None for other values.

    Args:
        kinds: accepted kinds of dtypes, as in ``numpy.dtype.kind``.
    """
    try:
        array = np.asarray(part)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in kinds and array.ndim and array.size else None

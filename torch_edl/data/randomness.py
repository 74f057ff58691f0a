"""Random numbers that the user's ``feed`` draws: a pure function of the job's seed and the task.

A task that is trained again must have its records in the same order, or some records are trained
twice and others never. The global generators are therefore seeded before ``feed`` is called, and
continue afterwards where they were. What ``feed`` made of the first records is compared between
the attempts on a task (:func:`order_of`), for generators that nobody but the user can seed.
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

_ROWS, _COLUMNS = 4096, 64  # at most so much of a tensor is compared
_TOLERANCE = 1e-4
"""Rounding differs between processors and numbers of threads; another order differs by about 1."""


class Generator(Protocol):
    """A global generator of random numbers."""

    def seed(self, seed: int) -> None:
        """Seeds the generator; ``seed`` has 63 bits."""
        ...

    def state(self) -> Any:
        """The state of the generator, which compares equal if nothing was drawn since."""
        ...

    def restore(self, state: Any) -> None:
        """The inverse of :meth:`state`."""
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
    """The global generators of a process.

    ``feed`` runs in a thread beside the training thread. Training draws from the generator of the
    framework as well (dropout), so ``feed`` and :meth:`apart` exclude each other if ``feed`` does.
    The generator of the framework is left alone if the first ``feed`` of a training task in this
    process does not use it.

    Args:
        framework: the generator of the framework of the model file.
    """

    def __init__(self, framework: Generator) -> None:
        self._all: list[Generator] = [_Python(), _Numpy(), framework]
        self._framework = framework
        self._lock = threading.RLock()
        self._is_drawn: bool | None = None

    def of_task(self, seed: int, epoch: int, task: int) -> TaskRandom:
        """The random numbers of a task.

        Args:
            seed: of the job.
        """
        digest = hashlib.blake2b(f"{seed}/{epoch}/{task}".encode(), digest_size=8).digest()
        return TaskRandom(self, int.from_bytes(digest, "little") >> 1)

    def apart(self) -> AbstractContextManager[Any]:
        """Within it, nothing else draws from the generator of the framework."""
        return contextlib.nullcontext() if self._is_drawn is False else self._lock

    @contextmanager
    def of_feed(
        self, seed: int, *, trains: bool
    ) -> Iterator[tuple[dict[Generator, Any], dict[Generator, Any]]]:
        """Seeds the generators, and gives two dicts: their states at the beginning and, filled at
        the end, those at the end. Then the generators continue where they were before.

        Args:
            trains: the task is one of training. Many a ``feed`` draws numbers in training only, so
                other tasks do not tell whether ``feed`` uses the generator of the framework.
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
        """Continues from the states, which are those of the end afterwards.

        Args:
            seed: of generators that have no state yet.
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
        seed: of the task; 63 bits.
    """

    def __init__(self, generators: Generators, seed: int) -> None:
        self._generators = generators
        self.seed = seed
        self._states: dict[Generator, Any] = {}
        self.is_drawn = False
        """``feed`` drew from a global generator: its samples may not be in the order of records."""

    @contextmanager
    def of_feed(self, *, trains: bool) -> Iterator[None]:
        """Within it, ``feed`` is called; ``trains`` tells whether the task is one of training."""
        with self._generators.of_feed(self.seed, trains=trains) as (begun, self._states):
            yield
        self.is_drawn = any(map(_differ, begun.values(), map(self._states.get, begun)))

    def iterate(self, iterator: Iterator[T]) -> Iterator[T]:
        """The items of an iterator that may draw random numbers for each of them."""
        while True:
            with self._generators.continued(self.seed, self._states):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item


def order_of(features: Any, labels: Any) -> float:
    """A number that differs for another order of records, or for other records.

    The number is made of all labels, and of integers among the features: ids, tokens. Pictures and
    floats may be augmented by generators of their own, which does no harm to exactly-once.
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
        # No two columns weigh the same: one may be the other's complement.
        weight = np.take(weights[1], range(at, at + columns), mode="wrap")
        total += float(weights[0, :rows] @ table @ weight)
        count, at = count + table.size, at + columns
    return total / math.sqrt(count) if count else 0.0


def is_same_order(one: float, other: float) -> bool:
    """Whether two numbers of :func:`order_of` are of the same records in the same order."""
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
    """The values of a dense tensor on the CPU; None if the part is something else."""
    try:
        array = np.asarray(part)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in kinds and array.ndim and array.size else None

"""Random numbers of the user's ``feed``, as a pure function of the job's seed and the task.

A repeated task must have its records in the same order; otherwise some records would be trained
twice and others never. The global generators are therefore seeded before ``feed`` is called, and
restored afterwards. Generators that only the user can seed are detected by comparing the first
records of all attempts on a task (:func:`order_of`).
"""

from __future__ import annotations

import hashlib
import math
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from torch_edl.data.trees import leaves

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

    ``feed`` and training run in two threads. If both draw from the same generator at the same time,
    neither gets reproducible numbers. ``feed`` is therefore called with seeded generators only
    while no code runs in :meth:`apart`. This costs time, so ``feed`` runs beside training, and
    nothing is seeded, as long as it is certain that ``feed`` does not draw:

    - The first ``feed`` of a training task in this process shows which generators ``feed`` uses.
    - The generators of ``random`` and numpy are compared before and after each later call. If
      anything drew from them, ``feed`` is called once more, seeded and apart from training, as are
      all later calls.
    - The framework's generator is not compared, since training mostly draws from it (dropout).

    Args:
        framework: generator of the model file's framework.
    """

    def __init__(self, framework: Generator) -> None:
        self._all: list[Generator] = [_PYTHON, _NUMPY, framework]
        self._lock = threading.RLock()
        self._is_judged = False  # a feed of a training task ran
        self._seeded: list[Generator] = list(self._all)  # feed may draw from these

    def of_task(self, seed: int, epoch: int, task: int) -> TaskRandom:
        """Return the random numbers of a task in a job with this seed."""
        digest = hashlib.blake2b(f"{seed}/{epoch}/{task}".encode(), digest_size=8).digest()
        return TaskRandom(self, int.from_bytes(digest, "little") >> 1)

    def apart(self) -> AbstractContextManager[Any]:
        """Return a context in which ``feed`` does not draw from any generator."""
        return self._lock

    def feed(
        self, seed: int, states: dict[Generator, Any], call: Callable[[], T], *, trains: bool
    ) -> tuple[T, bool]:
        """Call ``feed``. Returns its result, and True if ``feed`` drew random numbers.

        Args:
            seed: seed of the task.
            states: receives the states of the seeded generators after the call.
            call: calls ``feed``; may be called twice.
            trains: True for a training task. Other tasks do not show which generators ``feed``
                uses, since ``feed`` may draw random numbers only in training.
        """
        watched = [g for g in (_PYTHON, _NUMPY) if g not in self._seeded]
        before = [generator.state() for generator in watched]
        fed, drawn = self._seeded_feed(seed, states, call)
        moved = [g for g, state in zip(watched, before, strict=True) if _differ(g.state(), state)]
        if moved:
            states.clear()
            self._seeded += moved
            fed, drawn = self._seeded_feed(seed, states, call)
        with self._lock:
            if trains and not self._is_judged:
                self._is_judged, self._seeded = True, drawn
        return fed, bool(drawn)

    def _seeded_feed(
        self, seed: int, states: dict[Generator, Any], call: Callable[[], T]
    ) -> tuple[T, list[Generator]]:
        """Call ``feed`` with seeded generators. Returns its result, and the generators from which
        ``feed`` drew."""
        if not self._seeded:
            return call(), []
        with self.continued(seed, states, self._seeded) as begun:
            fed = call()
        return fed, [g for g, state in begun.items() if _differ(states[g], state)]

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

    def seed_always(self) -> None:
        """Seed all generators in each later call of ``feed``: a dataset draws from them while it is
        read."""
        with self._lock:
            self._is_judged, self._seeded = True, list(self._all)


class TaskRandom:
    """The random numbers of one task, from a seed of 63 bits: the same in each attempt."""

    def __init__(self, generators: Generators, seed: int) -> None:
        self._generators = generators
        self.seed = seed
        self._states: dict[Generator, Any] = {}
        self.is_drawn = False
        """True if ``feed`` drew from a global generator, so that its samples may be shuffled."""

    def feed(self, call: Callable[[], T], *, trains: bool) -> T:
        """Return the result of ``call``, which calls ``feed`` and may be called twice; ``trains``
        is True for a training task."""
        fed, self.is_drawn = self._generators.feed(self.seed, self._states, call, trains=trains)
        return fed

    def iterate(self, iterator: Iterator[T]) -> Iterator[T]:
        """Yield the items of an iterator that may draw random numbers for each item."""
        self._generators.seed_always()
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
    arrays = [array for _, part in leaves(labels) if (array := _array(part, "biuf")) is not None]
    for _, part in leaves(features):
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


def _array(part: Any, kinds: str) -> np.ndarray[Any, Any] | None:
    """Return a dense, non-empty CPU tensor as an array; None for other values, or if its
    ``dtype.kind`` is not in ``kinds``."""
    try:
        array = np.asarray(part)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in kinds and array.ndim and array.size else None

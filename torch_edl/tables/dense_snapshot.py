"""A consistent copy of the vectors of a dense shard, made while updates continue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

PIECE = 1 << 18
"""Number of values that are copied under one lock, which takes less than a millisecond."""
_PAUSE_S = 0.001  # without a pause, this thread takes the lock again before a waiting update


class DenseSnapshot:
    """Copies each piece of the vectors once: in :meth:`finish`, or just before an update.

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

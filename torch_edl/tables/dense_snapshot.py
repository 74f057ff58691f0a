"""The vectors of a dense shard as they are at one moment, copied while updates go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

PIECE = 1 << 18
"""Values that are copied under one lock: less than a millisecond."""
_PAUSE_S = 0.001  # a thread that locks again at once is faster than an update that waits


class DenseSnapshot:
    """Each piece is copied once: by :meth:`finish`, or before that by who is about to change it.

    Args:
        vectors: all of one length.
        lock: every change of the vectors needs it, and the caller holds it.
    """

    def __init__(self, vectors: Mapping[str, Floats], lock: threading.Lock) -> None:
        self._lock = lock
        self._pairs = {name: (live, np.empty_like(live)) for name, live in vectors.items()}
        size = max(live.size for live in vectors.values())
        self._missing = set(range(-(-size // PIECE)))

    def before_change(self, part: slice) -> Iterator[slice]:
        """``part`` in pieces, each of which may be changed when it is yielded. The caller holds the
        lock."""
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
        """Copies what is missing; returns the vectors."""
        for number in sorted(self._missing):
            with self._lock:
                self._copy(number)
            time.sleep(_PAUSE_S)
        return {name: copy for name, (_, copy) in self._pairs.items()}

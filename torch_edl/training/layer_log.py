"""Periodic log messages about the outputs of layers, for any framework (``--log-layers``)."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Sequence

_log = logging.getLogger("torch_edl.layers")

_EVERY = 50


class LayerLog:
    """Logs statistics of the outputs of layers, once every 50 minibatches.

    Args:
        pattern: glob pattern of names; empty: no layer matches.
        names: names of all layers.
    """

    def __init__(self, pattern: str, names: Sequence[str]) -> None:
        self.watched = [name for name in names if fnmatch.fnmatch(name, pattern)]
        """Names of the layers that match."""
        self.count = 0
        """Number of the current minibatch; 0 before the first. The framework sets the number."""
        if pattern and not self.watched:
            known = ", ".join(names)
            _log.warning("--log-layers %s: no module matches; there are %s", pattern, known)

    @property
    def due(self) -> bool:
        """Whether the outputs of the current minibatch are logged."""
        return self.count % _EVERY == 1

    def log(self, name: str, shape: Sequence[int], *figures: float) -> None:
        """Log the mean, standard deviation, minimum and maximum of a layer's output."""
        _log.info(
            "step %d %s %s: mean %.4g std %.4g min %.4g max %.4g",
            self.count,
            name,
            tuple(shape),
            *figures,
        )

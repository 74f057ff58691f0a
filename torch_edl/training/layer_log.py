"""Statistics of the outputs of layers, now and then, in any framework: ``--log-layers``."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Sequence

_log = logging.getLogger("torch_edl.layers")

_EVERY = 50


class LayerLog:
    """Of the layers whose names match a pattern.

    Args:
        pattern: glob over names; empty: none match.
        names: of all layers.
    """

    def __init__(self, pattern: str, names: Sequence[str]) -> None:
        self.watched = [name for name in names if fnmatch.fnmatch(name, pattern)]
        """Names of the layers that match."""
        self.count = 0
        """Of the minibatch that is trained."""
        if pattern and not self.watched:
            known = ", ".join(names)
            _log.warning("--log-layers %s: no module matches; there are %s", pattern, known)

    @property
    def due(self) -> bool:
        """Outputs of this minibatch are logged."""
        return self.count % _EVERY == 1

    def log(self, name: str, shape: Sequence[int], *figures: float) -> None:
        """Logs mean, standard deviation, minimum and maximum of the output of a layer."""
        _log.info(
            "step %d %s %s: mean %.4g std %.4g min %.4g max %.4g",
            self.count,
            name,
            tuple(shape),
            *figures,
        )

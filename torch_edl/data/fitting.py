"""The installed kinds of preprocessing, which one pass over the records fits before training.

The pass is a kind of task: workers observe the records of a task, and the master merges their
statistics.
"""

from __future__ import annotations

import sys
from typing import Any

from torch_edl.config.extensions import PREPROCESSING, installed, load
from torch_edl.interfaces.preprocessing import Fittable

_COLUMNS = "columns"


def is_fittable(thing: Any) -> bool:
    """Return True if an object is preprocessing of an installed kind; no kind is imported."""
    return any(
        each.module in sys.modules and isinstance(thing, load(PREPROCESSING, name, name))
        for name, each in installed(PREPROCESSING).items()
    )


def of_spec(spec: str) -> Fittable:
    """Return the preprocessing with a declaration.

    Raises:
        UsageError: the text is no declaration.
    """
    kind: type[Fittable] = load(PREPROCESSING, _COLUMNS, "preprocessing")
    return kind.from_spec(spec)

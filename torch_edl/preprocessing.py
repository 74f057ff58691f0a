"""The public name of :mod:`torch_edl.plugins.preprocessing`, for scripts and model files.

No module of torch-edl imports this one.
"""

from torch_edl.plugins.preprocessing import (
    Column,
    Columns,
    OneSpace,
    Shared,
    Statistics,
    column,
    cross,
    one_space,
    shared,
)

__all__ = [
    "Column",
    "Columns",
    "OneSpace",
    "Shared",
    "Statistics",
    "column",
    "cross",
    "one_space",
    "shared",
]

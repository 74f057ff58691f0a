"""The public name of :mod:`torch_edl.plugins.preprocessing`, for scripts and model files.

No module of torch-edl imports this one.
"""

from torch_edl.plugins.preprocessing.column import (
    Column,
    OneSpace,
    Shared,
    column,
    cross,
    one_space,
    shared,
)
from torch_edl.plugins.preprocessing.columns import Columns
from torch_edl.plugins.preprocessing.statistic import Statistics

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

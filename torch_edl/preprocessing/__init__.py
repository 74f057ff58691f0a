"""What becomes of the columns of records before a model sees them: hashes, vocabularies, buckets,
normalised numbers, fitted in one pass whose statistics merge in any order.

No torch, no TensorFlow and no sockets in here: Arrow and numpy, for any worker and for the master.
"""

from torch_edl.preprocessing.column import (
    Column,
    OneSpace,
    Shared,
    column,
    cross,
    one_space,
    shared,
)
from torch_edl.preprocessing.columns import Columns
from torch_edl.preprocessing.statistics import Statistics

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

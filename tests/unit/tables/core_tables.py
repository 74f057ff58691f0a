"""Tables of the compiled core that tests make, and the ids that they try."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from torch_edl import _core

INT64 = np.iinfo(np.int64)
any_ids = hnp.arrays(
    np.int64,
    st.integers(0, 300),
    elements=st.one_of(st.integers(-5, 5), st.integers(INT64.min, INT64.max)),
)


place: dict[str, str] = {}
"""Where the tables of the running test keep their rows; the fixture ``storage`` sets it."""


def core_table(*args: Any, **options: Any) -> _core.Table:
    return _core.Table(*args, **options, **place)


def make(dim: int = 4, kind: str = "sgd", **options: Any) -> _core.Table:
    rate = {"lr": 1.0} if kind == "sgd" else {}
    return core_table("t", dim, "normal", {"std": 1.0}, 7, _core.Optimizer(kind, rate), **options)


def rows(table: _core.Table, ids: np.ndarray, read_only: bool = True) -> np.ndarray:
    return table.pull(ids, read_only)


def run(call: Callable[..., None], arguments: Iterable[object]) -> None:
    """Call a function with each of the arguments, in a thread of its own."""
    given = list(arguments)
    with ThreadPoolExecutor(len(given)) as threads:
        list(threads.map(call, given))

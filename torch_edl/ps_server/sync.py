"""Sync mode: pushes wait for their quorum and become one update of their mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.tables.exact import Array
from torch_edl.tables.table import EmbeddingTable

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Gradients:
    """One push, or the mean of several, decoded and checked."""

    dense: Floats | None
    """(n,) the flat gradient of the shard"""
    tables: list[tuple[EmbeddingTable, Ids, Floats]]
    """ids (n,) and gradients (n, dim)"""
    rates: list[float]
    """One per parameter group; empty: the groups' own."""
    version: int
    """Of the parameters that it was computed with."""
    untouched: frozenset[int] = frozenset()
    """Places of dense parameters that the loss did not reach; ``dense`` is zero there in sync
    mode, and says nothing otherwise."""
    exact: Mapping[str, Array] = field(default_factory=dict)
    """New values of what is not float32."""


@dataclass(frozen=True)
class Waiting:
    """A push that waits for its quorum."""

    task_id: int
    last: int
    gradients: Gradients


class Buffer:
    """The pushes of the update to come, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, push: Waiting) -> None:
        """One more."""
        self._waiting.append(push)

    def take(self, wanted: Callable[[Waiting], bool] = lambda _: True) -> list[Waiting]:
        """Removes and returns those that are wanted."""
        taken = [w for w in self._waiting if wanted(w)]
        self._waiting = [w for w in self._waiting if not wanted(w)]
        return taken


def mean(pushes: list[Gradients], assigned: Sequence[slice] = ()) -> Gradients:
    """Their average: an id or parameter that a push lacks counts as zero in it.

    The rates, and values that are not float32, are those of the last push; the version is the
    oldest.

    Args:
        assigned: where ``dense`` holds values rather than gradients: they are averaged over the
            pushes that have some.
    """
    if len(pushes) == 1:
        return pushes[0]
    scale = np.float32(1 / len(pushes))
    moving = [p for p in pushes if p.dense is not None]
    dense = [p.dense for p in moving if p.dense is not None]
    by_table: dict[EmbeddingTable, list[tuple[Ids, Floats]]] = {}
    for push in pushes:
        for table, ids, values in push.tables:
            by_table.setdefault(table, []).append((ids, values))
    tables = []
    for table, parts in by_table.items():
        unique, _, inverse = _core.unique_partition(np.concatenate([i for i, _ in parts]), 1)
        sums = np.empty((len(unique), table.dim), np.float32)
        _core.scatter_sum(np.concatenate([v for _, v in parts]), inverse, sums)
        sums *= scale
        tables.append((table, unique, sums))
    total: Floats | None = None
    if dense:
        total = dense[0] * scale
        for other in dense[1:]:
            total += other * scale
        for part in assigned:
            total[part] *= len(pushes) / len(dense)
    return Gradients(
        dense=total,
        tables=tables,
        rates=pushes[-1].rates,
        version=min(p.version for p in pushes),
        untouched=frozenset.intersection(*(p.untouched for p in moving)) if moving else frozenset(),
        exact={name: value for p in pushes for name, value in p.exact.items()},
    )

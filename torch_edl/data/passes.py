"""The records of each update and of each member, as pure functions of the position.

A pass reads the records of a dataset ``epochs`` times. A position is a number of records since the
start of the pass. An update consists of the records after its position. For a given size of
updates, the records do not depend on the members of the ring. Each member has a contiguous part of
an update.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch_edl.data.cuts import CUTS, even_cuts, minibatch_cuts
from torch_edl.errors import UsageError

Span = tuple[int, int]
"""Position of the first record, and position after the last record."""


def without(span: Span, skip: Sequence[Span]) -> list[Span]:
    """Return the parts of a span, in order, that are in none of the spans in ``skip``."""
    left = [span]
    for first, last in skip:
        left = [
            (low, high)
            for start, end in left
            for low, high in ((start, min(end, first)), (max(start, last), end))
            if low < high
        ]
    return left


class MemberPart(NamedTuple):
    """The part of one member in an update."""

    records: int
    """Number of records in the whole update, over all members."""
    spans: Sequence[Span]
    """Positions of the member's minibatches; empty if the update has too few records."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over data.

    Raises:
        UsageError: a number is out of range.
    """

    records: int
    """Number of records in the dataset."""
    batch_size: int
    """Maximum number of records in a minibatch."""
    epochs: int = 1
    """Number of epochs."""
    accumulate: int = 1
    """Number of minibatches of each member in an update."""
    global_batch_size: int = 0
    """Number of records in an update, for any number of members; 0: the number is ``batch_size *
    accumulate`` for each member."""
    drop_last: bool = False
    """Whether records that do not fill the last update of an epoch are dropped."""
    even: bool = False
    """Whether the remainder of an epoch is spread over its updates, whose sizes then differ by at
    most one while the ring does not change; otherwise the last one is short, as in a DataLoader."""
    shuffle: bool = False
    """Whether the records of each epoch are shuffled."""
    seed: int = 0
    """Seed of the shuffle."""
    end: int = 0
    """Number of records after which the pass ends early; 0: the pass ends at its last record."""
    files: str = ""
    """Digest of the data files; empty: the dataset is indexed by position."""
    samples: str = ""
    """Digest of what the dataset stores for its samples; empty: it is unknown."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: must be 1 or more")
        if self.global_batch_size < 0:
            raise UsageError(f"global_batch_size {self.global_batch_size}: must be 1 or more")
        if self.global_batch_size and self.accumulate > 1:
            raise UsageError(
                f"accumulate {self.accumulate} with global_batch_size {self.global_batch_size}: "
                "global_batch_size determines the number of minibatches; leave accumulate out"
            )

    @property
    def identity(self) -> dict[str, int | str]:
        """Values that determine the record at each position; compared when a job is restored."""
        made: dict[str, int | str] = {
            "records": self.records,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "files": self.files,
            "cuts": CUTS,
            "samples": self.samples,
        }
        if self.files and self.shuffle:
            made["batch_size"] = self.batch_size  # files are shuffled in blocks of minibatches
        return made

    @cached_property
    def total(self) -> int:
        """Number of records in the whole pass, dropped records included."""
        return self.end or self.records * self.epochs

    def update_size(self, world: int) -> int:
        """Return the number of records in an update of ``world`` members; the last update of an
        epoch may be smaller."""
        return self.global_batch_size or self.batch_size * self.accumulate * world

    def next_start(self, position: int, world: int) -> int:
        """Return the start of the next update at or after ``position``: the next epoch if the rest
        of this epoch is dropped; ``total`` at the end."""
        if self.drop_last and position < self.total:
            epoch_end = (position // self.records + 1) * self.records
            if position + self.update_size(world) > epoch_end:
                if self.update_size(world) > self.records:
                    return self.total
                return epoch_end
        return position

    def part(self, start: int, rank: int, world: int) -> MemberPart:
        """Return the part of a member in the update that begins at ``start`` (see
        :meth:`next_start`). An update ends at the latest with its epoch."""
        records, size = self._left(start), self.update_size(world)
        if self.even:
            records = -(-records // -(-records // size))
        records = min(size, records)
        cut = self._cuts.get((records, rank, world))
        if cut is None:
            cut = self._cuts[records, rank, world] = self._cut(records, rank, world)
        return MemberPart(records, [(start + first, start + last) for first, last in cut])

    def _left(self, start: int) -> int:
        """Return the number of records from ``start`` to the end of its epoch, or of the pass."""
        return min(self.records - start % self.records, self.total - start)

    def spans(self, start: int, first: Span, rank: int, world: int) -> Iterator[Span]:
        """Yield the minibatches of a member from ``first`` on, which is in the update at
        ``start``."""
        while (start := self.next_start(start, world)) < self.total:
            part = self.part(start, rank, world)
            yield from (span for span in part.spans if span >= first)
            start += part.records

    @cached_property
    def _cuts(self) -> dict[tuple[int, int, int], list[Span]]:
        """Cache of the minibatches by (records, rank, world), relative to the update's start."""
        return {}

    def _cut(self, records: int, rank: int, world: int) -> list[Span]:
        # Sizes differ by at most one; the first members have the larger parts.
        as_a_loader = not self.global_batch_size and not self.even
        if as_a_loader and records < self.update_size(world):
            # At the end of an epoch, full minibatches come first, as in a DataLoader.
            each = self.batch_size * self.accumulate
            first = min(rank * each, records)
            last = min(first + each, records)
        else:
            first, last = even_cuts(records, world)[rank : rank + 2]
            ends = minibatch_cuts(last - first, self.batch_size)
            return [(first + at, first + end) for at, end in itertools.pairwise(ends)]
        return [(at, min(at + self.batch_size, last)) for at in range(first, last, self.batch_size)]

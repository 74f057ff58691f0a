"""What task ``i`` of a pass over data is: a pure function that holds nothing per task; and what
fixes the meaning of ``i``, which is compared when a job continues. No torch here."""

from __future__ import annotations

import bisect
import datetime
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_edl.config import JobConfig
    from torch_edl.interfaces import Source

_FEISTEL_ROUNDS = 6
_MASK = (1 << 64) - 1

# The parts of an identity, as arguments of ``job.loader`` where they are some.
_WORDS = {
    "records": "{:,} records",
    "batch_size": "batch_size={}",
    "records_per_task": "{:,} records a task",
    "shuffle": "shuffle={!r}",
    "seed": "seed={}",
    "epochs": "epochs={}",
}

SEED_SAMPLES = (
    "all processes of a job need the same samples in the same order: seed what splits or shuffles "
    "them, as in random_split(dataset, lengths, generator=torch.Generator().manual_seed(0))"
)
"""What to do where the datasets of two processes store other samples."""

Piece = tuple[int, int, int]
"""A task, and offsets in it: of the first record and of one after the last."""


@dataclass(frozen=True)
class Shard:
    """One file or table."""

    name: str
    records: int
    size: int = 0
    """Bytes of the content that was counted; 0: it is no file."""
    mtime_ns: int = 0
    """When that content was last changed."""
    fingerprint: str = field(default="", compare=False)
    """Of the content that was counted; empty: it is no file, or was not asked for."""

    @classmethod
    def of(cls, source: Source) -> Shard:
        """A source as it is now. One of the user's own may have a ``stamp``, and needs none."""
        return cls(source.name, source.count, *getattr(source, "stamp", ()))

    @classmethod
    def counted(cls, source: Source) -> Shard:
        """As :meth:`of`, with the fingerprint of a file, of which two blocks are read.

        Raises:
            DataError: the file cannot be read, or has changed since the source was opened.
        """
        return replace(cls.of(source), fingerprint=getattr(source, "fingerprint", ""))

    def __str__(self) -> str:
        text = f"{self.records:,} records"
        if not self.size:
            return text
        changed = datetime.datetime.fromtimestamp(self.mtime_ns / 1e9, datetime.UTC)
        return f"{text}, {self.size:,} bytes of {changed:%Y-%m-%d %H:%M:%S.%f} UTC"


@dataclass(frozen=True)
class Task:
    """Records ``start`` to ``end`` (exclusive) of a shard."""

    id: int
    epoch: int
    shard: str
    start: int
    end: int

    @property
    def records(self) -> int:
        """How many records it has."""
        return self.end - self.start


class Permutation:
    """A bijection of [0, size): a pure function of (seed, epoch) that takes no memory.

    A Feistel network permutes [0, 2^k) whatever its round function is; walking its cycles until a
    number below n comes out restricts that to [0, n) (Black and Rogaway, Ciphers with Arbitrary
    Finite Domains, 2002). At most one number in four is out of range in a step, on average.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self._half = max(1, (max(0, size - 1).bit_length() + 1) // 2)
        self._low = (1 << self._half) - 1
        key = _mix((seed & _MASK) + 0x9E3779B97F4A7C15)
        key = _mix(key ^ (epoch + 1))
        self._keys = []
        for _ in range(_FEISTEL_ROUNDS):
            key = _mix((key + 0x9E3779B97F4A7C15) & _MASK)
            self._keys.append(key)

    def forward(self, value: int) -> int:
        """What stands at position ``value``; 0 <= value < size."""
        while True:
            left, right = value >> self._half, value & self._low
            for key in self._keys:
                left, right = right, left ^ (_mix(right ^ key) & self._low)
            value = (left << self._half) | right
            if value < self.size:
                return value

    def inverse(self, value: int) -> int:
        """The position at which ``value`` stands."""
        while True:
            left, right = value >> self._half, value & self._low
            for key in reversed(self._keys):
                left, right = right ^ (_mix(left ^ key) & self._low), left
            value = (left << self._half) | right
            if value < self.size:
                return value


def _mix(value: int) -> int:
    """The finalizer of splitmix64: every bit of the input moves half the bits of the output."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


class TaskSpace:
    """The tasks of a pass, by number: ``epoch * tasks_per_epoch + position``.

    The position is shuffled by a pure function of (seed, epoch), so a task is computed when it
    is needed and ten million of them cost nothing.

    Args:
        shards: the files in a stable order; empty ones give no task.
        batch_size: records of a minibatch, to count steps: a task of n records has
            ceil(n / batch_size).
        max_steps: cut the pass after so many minibatches, the last task included; 0: do not.
    """

    open = False
    """More tasks may come; see :class:`~torch_edl.data.stream_space.StreamSpace`."""

    def __init__(
        self,
        shards: Sequence[Shard],
        records_per_task: int,
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = False,
        batch_size: int = 1,
        max_steps: int = 0,
    ) -> None:
        self.records_per_task = records_per_task
        self.batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._shards = [s for s in shards if s.records > 0]
        self._by_name = {shard.name: shard for shard in self._shards}
        self._first = [0]  # of each shard, its first task in file order; one more at the end
        for shard in self._shards:
            self._first.append(self._first[-1] + -(-shard.records // records_per_task))
        self.tasks_per_epoch = self._first[-1]
        # The last task of a shard may be shorter: file-order index -> records.
        self._short = {
            last - 1: shard.records % records_per_task
            for shard, last in zip(self._shards, self._first[1:], strict=True)
            if shard.records % records_per_task
        }
        self._orders: dict[int, tuple[Permutation, list[tuple[int, int]]]] = {}
        self.cut: Task | None
        self._max_steps = max_steps
        self.extend(epochs)

    @classmethod
    def for_training(cls, shards: Sequence[Shard], config: JobConfig) -> TaskSpace:
        """The training tasks of a job: the master and the members of a ring count by the same."""
        return cls(
            shards,
            config.records_per_task,
            epochs=config.data.epochs,
            seed=config.train.seed,
            shuffle=config.data.shuffle,
            batch_size=config.data.batch_size,
            max_steps=config.train.max_steps,
        )

    def extend(self, epochs: int) -> None:
        """Makes the tasks of so many epochs, of which there were others before."""
        self.epochs, self.total, self.cut = epochs, self.tasks_per_epoch * epochs, None
        if self._max_steps:
            self._cut_after(self._max_steps)
        self.total_records = self.records_before(self.total)
        self.total_steps = self.steps_before(self.total)

    def task(self, id: int) -> Task:
        """Task ``id``; 0 <= id < total."""
        if self.cut is not None and id == self.cut.id:
            return self.cut
        epoch, position = divmod(id, self.tasks_per_epoch)
        index = self._order(epoch)[0].forward(position) if self._shuffle else position
        number = bisect.bisect_right(self._first, index) - 1
        shard = self._shards[number]
        start = (index - self._first[number]) * self.records_per_task
        end = min(start + self.records_per_task, shard.records)
        return Task(id, epoch, shard.name, start, end)

    def shard(self, name: str) -> Shard:
        """The shard of that name, as it was counted."""
        return self._by_name[name]

    def steps_of(self, records: int) -> int:
        """Minibatches in the first ``records`` records of a task."""
        return -(-records // self.batch_size)

    def steps_before(self, id: int) -> int:
        """Minibatches of all tasks below ``id``."""
        return self._before(id, self.steps_of)

    def records_before(self, id: int) -> int:
        """Records of all tasks below ``id``."""
        return self._before(id, lambda records: records)

    def at(self, position: int) -> tuple[int, int]:
        """The task, and the offset in it, of a position in the order of tasks: the inverse of
        :meth:`records_before`; 0 <= position < total_records."""
        id = bisect.bisect_right(range(self.total), position, key=self.records_before) - 1
        return id, position - self.records_before(id)

    def pieces(self, span: tuple[int, int]) -> list[Piece]:
        """The pieces of tasks at some positions, from the first to one after the last."""
        first, last = span
        pieces = []
        task, offset = self.at(first)
        while first < last:
            count = min(last - first, self.task(task).records - offset)
            pieces.append((task, offset, offset + count))
            first += count
            task, offset = task + 1, 0
        return pieces

    def epoch_of(self, id: int) -> int:
        """Epoch of a task. Past the last one ``epochs``, or that of the last one where
        ``max_steps`` ended the pass before."""
        if id < self.total:
            return id // self.tasks_per_epoch
        limited = self.cut is not None or self.total < self.tasks_per_epoch * self.epochs
        return (self.total - 1) // self.tasks_per_epoch if limited else self.epochs

    def epochs_before(self, id: int) -> int:
        """Epochs all of whose tasks are below ``id``."""
        return id // self.tasks_per_epoch if self.tasks_per_epoch else self.epochs

    def _before(self, id: int, size: Callable[[int], int]) -> int:
        if not self.tasks_per_epoch:
            return 0
        extra = 0
        if self.cut is not None and id > self.cut.id:
            id, extra = self.cut.id, size(self.cut.records)
        epoch, position = divmod(id, self.tasks_per_epoch)
        full = size(self.records_per_task)
        whole = self.tasks_per_epoch * full - sum(full - size(n) for n in self._short.values())
        done = epoch * whole + position * full + extra
        if position:
            for where, records in self._order(epoch)[1]:
                if where >= position:
                    break
                done -= full - size(records)
        return done

    def _order(self, epoch: int) -> tuple[Permutation, list[tuple[int, int]]]:
        """The permutation of an epoch, and where it puts the short tasks (position, records)."""
        order = self._orders.get(epoch)
        if order is None:
            permutation = Permutation(self.tasks_per_epoch, self._seed, epoch)
            place = permutation.inverse if self._shuffle else int
            short = sorted((place(index), records) for index, records in self._short.items())
            order = (permutation, short)
            if len(self._orders) >= 4:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order
        return order

    def _cut_after(self, max_steps: int) -> None:
        if self.steps_before(self.total) <= max_steps:
            return
        # The last task that begins before the limit.
        last = bisect.bisect_left(range(self.total), max_steps, key=self.steps_before) - 1
        task = self.task(last)
        records = (max_steps - self.steps_before(last)) * self.batch_size
        self.total = last + 1
        if records < task.records:
            self.cut = Task(last, task.epoch, task.shard, task.start, task.start + records)


def one_off(name: str) -> TaskSpace:
    """One task without data: something that any one worker is to do once."""
    return TaskSpace([Shard(name, 1)], 1)


def digest(shards: Sequence[Shard]) -> str:
    """Of names, record counts, sizes and fingerprints of data files, in their order; of times not,
    since other machines may have copies."""
    text = json.dumps([[s.name, s.records, s.size, s.fingerprint] for s in shards])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first part in which two identities differ, in the words of both; None: in none.

    What only one of them has is not compared: an earlier version did not know it.
    """
    for name in [*_WORDS, "files"]:
        if name in then and name in now and then[name] != now[name]:
            return _in_words(name, then[name]), _in_words(name, now[name])
    return None


def _in_words(name: str, value: Any) -> str:
    if name == "files":
        named = f"data files {value} (digest of names, record counts and contents)"
        return named if value else "no data files"
    return _WORDS[name].format(bool(value) if name == "shuffle" else value)

"""Cuts of records into parts of equal size, as pure functions of numbers.

A short minibatch has a noisy gradient, and moves the model as far as a full one does. With
BatchNorm, its statistics are those of a few records, and a single record has none. So the remainder
of a division is spread over all parts instead of being a part of its own.
"""

from __future__ import annotations

CUTS = 3
"""Version of the rules that cut data into tasks and minibatches, and shuffle them
(``torch_edl/data/shuffle.py``). A checkpoint names records by their positions, so it cannot be
continued with other rules."""


def even_cuts(records: int, parts: int) -> list[int]:
    """Return the offsets that cut some records into parts whose sizes differ by at most one: 0, the
    end of each part, and ``records`` last. The larger parts come first.

    The first offsets of a cut are the cut of its first parts alone, so a task that ends early has
    the first minibatches of the whole task.
    """
    size, larger = divmod(records, max(1, parts))
    return [number * size + min(number, larger) for number in range(parts + 1)]


def minibatch_cuts(records: int, batch_size: int) -> list[int]:
    """Return the offsets that cut a task into the fewest minibatches of at most ``batch_size``
    records; see :func:`even_cuts`."""
    return even_cuts(records, -(-records // batch_size))


def tasks_of(records: int, records_per_task: int) -> int:
    """Return the number of tasks of a shard. A rest of less than half a task belongs to the task
    before it, so the last task has at least half and less than one and a half times as many records
    as the others; a small shard is one task."""
    whole, rest = divmod(records, records_per_task)
    return whole + (2 * rest >= records_per_task or (not whole and rest > 0))


def task_end(start: int, records: int, records_per_task: int) -> int:
    """Return the offset after the last record of the task that begins at record ``start`` of a
    shard with ``records`` records."""
    last = tasks_of(records, records_per_task) - 1
    return records if start >= last * records_per_task else start + records_per_task

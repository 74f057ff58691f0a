"""Digests of the first records that a process reads, by which the members of a ring find out that
one of them was given other records, such as its own part of a dataset.

A part of a record, such as a text or a label, has one digest. Augmentation may make any part
random, so two processes have other records only if no part is the same in both. Parts that are
known to be random have no digest, nor do images and other arrays of several dimensions.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torch_edl.pytorch.sample_digest import plain, some

FIRST = 8
"""Number of records of a stream that are compared."""
_READ = 3  # records of an indexed dataset that are read, twice each
_PARTS, _DEPTH = 64, 6  # limits: parts of a record, and levels of nested parts


def digests(records: Sequence[Any]) -> dict[str, str]:
    """Return the digest of each part by its name, such as ``text`` or ``1.label``.

    Parts that some record lacks, that are equal in all records or whose type is not supported are
    left out.
    """
    found = [dict(itertools.islice(_parts(record, "", _DEPTH), _PARTS)) for record in records]
    made = {}
    for name in found[0] if found else ():
        values = [repr(parts.get(name)) for parts in found]
        if all(name in parts for parts in found) and len(set(values)) > 1:
            text = f"{name}: {values}"
            made[name] = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return made


def digests_of_dataset(dataset: Any) -> dict[str, str]:
    """Return :func:`digests` of the first, the last and another record of a dataset that is read
    by index. The global generators of random numbers are left as they are.

    The records are read twice: a part that differs is random, and is left out. The result is empty
    if a record cannot be read.
    """
    at = some(len(dataset), _READ)
    with _generators_kept():
        try:
            first, second = (digests([dataset[index] for index in at]) for _ in range(2))
        except Exception:  # the training loop will meet the error
            return {}
    return dict(first.items() & second.items())


def is_random(read: Callable[[], Any]) -> bool:
    """Call a function; return True if it drew from a global generator of random numbers."""
    before = pickle.dumps(_states())
    read()
    return before != pickle.dumps(_states())


def _parts(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a record with their names, as numbers and texts."""
    if isinstance(value, str | bytes | int | float | np.generic):
        yield name, plain(value)
    elif isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim < 2 and getattr(value, "layout", torch.strided) is torch.strided:
            yield name, plain(value)
    elif isinstance(value, list) and name and all(isinstance(v, int | float) for v in value):
        yield name, plain(value)  # the tokens of a text
    elif isinstance(value, list | tuple | Mapping) and depth:
        named = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in itertools.islice(named, _PARTS):
            yield from _parts(part, f"{name}.{key}".lstrip("."), depth - 1)


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes()


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Return a context at whose end the global generators have the states of its start."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(own)

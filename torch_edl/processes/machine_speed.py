"""A measurement of the machine of a process: a matrix product and a copy on its CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

_PART_S = 1.0
_ROWS = 512
_COPIED_BYTES = 1 << 26  # more than caches hold


class MachineSpeed(NamedTuple):
    """Speed of a machine while other processes run on it, too."""

    flops: float
    """Floating-point operations a second of a product of two float32 matrices of 512 x 512."""
    copied: float
    """Bytes a second of copies of 64 MiB."""


def measure(part_s: float = _PART_S) -> MachineSpeed:
    """Return the speed of this machine, measured for twice ``part_s`` seconds."""
    import numpy as np

    a, b = np.ones((2, _ROWS, _ROWS), np.float32)
    product = np.empty_like(a)
    source = np.ones(_COPIED_BYTES, np.uint8)
    copy = np.zeros_like(source)
    products = _per_second(lambda: np.matmul(a, b, out=product), part_s)
    copies = _per_second(lambda: np.copyto(copy, source), part_s)
    return MachineSpeed(products * 2 * _ROWS**3, copies * _COPIED_BYTES)


def _per_second(call: Callable[[], object], part_s: float) -> float:
    call()  # the first call starts threads
    began, count = time.monotonic(), 0
    while (passed_s := time.monotonic() - began) < part_s or not count:
        call()
        count += 1
    return count / passed_s

"""The order of the records in a pass, which is a function of (seed, pass, epoch)."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from torch_edl.data.passes import Pass, Span


class Order:
    """Maps positions of a pass to indices of the dataset.

    Args:
        number: number of the pass in the job; each pass has its own order.
    """

    def __init__(self, data: Pass, number: int) -> None:
        self._data = data
        self._number = number
        self._epoch = -1
        self._indices = np.empty(0, np.int64)

    def indices(self, span: Span) -> list[int]:
        """Return the indices at the positions of a span, which must lie in one epoch."""
        first, last = span
        epoch, start = divmod(first, self._data.records)
        if not self._data.shuffle:
            return list(range(start, start + last - first))
        if epoch != self._epoch:
            # 8 bytes per record, as in torch's RandomSampler.
            generator = torch.Generator()
            text = f"{self._data.seed}/{self._number}/{epoch}".encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            generator.manual_seed(int.from_bytes(digest, "little"))
            self._indices = torch.randperm(self._data.records, generator=generator).numpy()
            self._epoch = epoch
        indices: list[int] = self._indices[start : start + last - first].tolist()
        return indices

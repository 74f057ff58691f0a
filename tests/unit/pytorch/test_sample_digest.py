"""The digest of what a dataset stores: it differs for another order, and for nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from torch_edl.pytorch.sample_digest import sample_digest

COUNT = 300


class Stored(Dataset[Any]):
    """A dataset of the user's: it keeps something for each sample, and augments at random."""

    def __init__(self, kept: Any, **more: Any) -> None:
        self.kept = kept
        self.cache: list[Any] = [None] * len(kept)
        self.__dict__.update(more)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Any:
        self.cache[index] = random.random()
        return self.cache[index]


def values(order: list[int], scale: float = 1.0) -> torch.Tensor:
    return torch.linspace(-3, 3, COUNT)[order, None] * torch.tensor([1.0, scale])


def hugging(order: list[int]) -> Any:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(COUNT)]})
    return whole.select(order)


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "subset": lambda order: Subset(TensorDataset(torch.zeros(COUNT)), order),
    "tensors": lambda order: TensorDataset(values(order), torch.zeros(COUNT)),
    "images": lambda order: TensorDataset(torch.eye(COUNT)[order].bfloat16()),
    "labels": lambda order: StackDataset(torch.zeros(COUNT, 1), torch.tensor(order)),
    "parts": lambda order: ConcatDataset([range(5), Subset(range(COUNT), order)]),  # type: ignore[list-item]
    "list": lambda order: [{"text": f"text {n}"} for n in order],
    "files": lambda order: Stored([Path(f"/data/{n}.jpg") for n in order]),
    "bytes": lambda order: Stored([n.to_bytes(4) for n in order]),
    "pairs": lambda order: Stored([(f"/data/{n // 9}/a.jpg", n // 9) for n in order]),
    "array": lambda order: Stored(range(COUNT), data={"x": np.array(order)}),
    "inner": lambda order: Stored(range(COUNT), of=Subset(range(COUNT), order)),  # type: ignore[arg-type]
    "frame": lambda order: Stored(pd.DataFrame({"n": order, "text": "t"})),
    "arrow": lambda order: Stored(pa.table({"n": order})),
    "hugging face": hugging,
}
ORDER = random.Random(0).sample(range(COUNT), COUNT)


@pytest.mark.parametrize("kind", KINDS)
def test_another_order_has_another_digest(kind: str) -> None:
    make = KINDS[kind]
    digest = sample_digest(make(ORDER))
    assert digest
    assert sample_digest(make(list(ORDER))) == digest
    assert sample_digest(make(random.Random(1).sample(ORDER, COUNT))) != digest


def test_a_dataset_that_stores_nothing_for_each_sample_has_no_digest() -> None:
    class Made(Dataset[int]):
        def __init__(self) -> None:
            self.seed, self.shape, self.generator = time.time(), [3, 4], torch.Generator()
            self.itself = self

        def __len__(self) -> int:
            return COUNT

    assert not sample_digest(Made())


def test_what_does_not_change_the_samples_does_not_change_the_digest() -> None:
    first = Stored([f"/a/{n}.jpg" for n in ORDER])
    digest = sample_digest(first)
    assert sample_digest(Stored([f"/mnt/b/{n}.jpg" for n in ORDER])) == digest
    for index in range(COUNT):
        first[index]
    assert sample_digest(first) == digest


def test_floats_may_be_rounded_in_another_way() -> None:
    exact = values(ORDER, 1e3).double()
    noise = 1 + 1e-7 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(0))
    digests = {sample_digest(TensorDataset(each)) for each in (exact, exact * noise, exact.float())}
    assert len(digests) == 1


def test_a_large_dataset_is_not_read() -> None:
    begun = time.monotonic()
    sample_digest(Subset(range(10**9), range(10**9)))  # type: ignore[arg-type]
    assert time.monotonic() - begun < 10

"""An error of training names the rows of the file, or the one row, that cannot be trained."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.data.test_feeder import config
from tests.unit.pytorch.test_step import step
from torch_edl.data.feeder import Feeder
from torch_edl.data.sources import IndexedSource
from torch_edl.errors import MinibatchError
from torch_edl.master_client.leases import HeldLease
from torch_edl.pytorch.datasets import TorchDatasets

COUNT, BAD, SIZE = 4096, 1500, 64

Pair = tuple[float, float]


def records(x: Any = None, y: Any = None) -> list[bytes]:
    """Return records, one of which has another number."""
    rows = [[n / COUNT, n % 2] for n in range(COUNT)]
    rows[BAD] = [rows[BAD][0] if x is None else x, rows[BAD][1] if y is None else y]
    return [json.dumps(row).encode() for row in rows]


def tensors(records: list[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.tensor([json.loads(record) for record in records])
    return table[:, :1], table[:, 1]


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, records: list[bytes]) -> None:
        self._x, self._y = tensors(records)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        return self._x[index], self._y[index]


def first_error(
    data: list[bytes], loss: Any, feed: Any, local_steps: int = 1
) -> tuple[str, MinibatchError]:
    """Where training fails first, and with what."""
    job = config(SIZE, local_steps, records_per_task=2048)
    sources = {"s": IndexedSource(data, name="s")}
    made = Feeder(
        job, lambda records, mode, metadata: feed(records), TorchDatasets(job.data), sources
    )
    trained = step(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1), nn.Flatten(0)), loss)
    lease = HeldLease(lease_id=1, shard="s", start=0, end=2048, shard_records=COUNT)
    for update in made.prepare(lease)(0):
        for minibatch in update.minibatches:
            try:
                trained.loss(minibatch.batch)
            except MinibatchError as error:
                return update.where(error.sample), error
            update.losses.append(0.0)
    raise AssertionError("nothing failed")


def classes(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    both = torch.stack((predictions, -predictions), 1)
    return F.cross_entropy(both, labels.long())


def logarithm(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return (torch.log1p(labels) - predictions).square().mean()


NAN = float("nan")
CAUSES: dict[str, tuple[list[bytes], Any, str]] = {
    "label": (
        records(y=NAN),
        F.mse_loss,
        r"labels\[\d+\] is nan .*let feed leave such records out",
    ),
    "feature": (records(x=NAN), F.mse_loss, r"features\[\d+, 0\] is nan .*let feed leave"),
    "class": (records(y=7), classes, "loss raised IndexError: Target 7 is out of bounds"),
    "loss": (records(y=-2), logarithm, "the loss is nan; lower the learning rate"),
}


@pytest.mark.parametrize("name", CAUSES)
@pytest.mark.parametrize("feed", [tensors, Items])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_the_row_is_named(name: str, feed: Callable[..., Any], local_steps: int) -> None:
    data, loss, message = CAUSES[name]
    where, error = first_error(data, loss, feed, local_steps)
    assert where == "record 1,500 of s"
    with pytest.raises(MinibatchError, match=message):
        raise error


def shuffled(records: list[bytes]) -> Any:
    return tensors(random.sample(records, len(records)))


def some(records: list[bytes]) -> Any:
    x, y = tensors(records)
    kept = x[:, 0] != (BAD + 1) / COUNT
    return x[kept], y[kept]


@pytest.mark.parametrize("feed", [shuffled, some])
def test_the_rows_of_the_minibatch_are_named_where_feed_moves_them(feed: Any) -> None:
    where, _ = first_error(records(y=NAN), F.mse_loss, feed)
    rows = where.removeprefix("records ").removesuffix(" of s").split(", ")
    assert rows == sorted(rows, key=int)
    assert len(rows) == SIZE


def test_the_rows_of_the_minibatch_are_named_where_all_fail() -> None:
    def loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
        if (labels.max(), len(labels)) != (1, SIZE):
            raise ValueError("not this way")
        return predictions.mean()

    where, _ = first_error(records(y=9), loss, tensors)
    rows = [int(row) for row in where.removeprefix("records ").removesuffix(" of s").split(", ")]
    assert BAD in rows
    assert len(rows) == SIZE

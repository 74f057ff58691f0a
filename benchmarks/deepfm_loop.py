"""DeepFM in a training loop of the user's own; `deepfm.py` starts it with `torch-edl run`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from deepfm_data import DIM, HIDDEN, INIT_STD, example, read
from torch import Tensor, nn
from torch.utils.data import Dataset

import torch_edl


class Clicks(Dataset[Any]):
    """All records in memory; a minibatch is one index of the tensors, as in the plain part."""

    def __init__(self, data: Path) -> None:
        (self.ids, self.dense), self.labels = read(data, "train")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, records: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        part = slice(records[0], records[-1] + 1)  # not shuffled
        return self.ids[part], self.dense[part], self.labels[part]


def as_it_is(minibatch: Any) -> Any:
    return minibatch


def main() -> None:
    data, lr, folder = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    batch = int(sys.argv[4])
    clicks = Clicks(data)
    start = ("normal", {"mean": 0.0, "std": INIT_STD})
    torch.manual_seed(0)
    model = example.DeepFM(
        lambda dim: torch_edl.nn.Embedding(None, dim, initializer=start), DIM, HIDDEN
    )
    optimizer = torch.optim.Adagrad(model.parameters(), lr=lr)
    loss = nn.BCEWithLogitsLoss()
    job = torch_edl.init()
    model, optimizer = job.prepare(model, optimizer)
    records, begin, end = 0, 0.0, 0.0
    for ids, dense, labels in job.loader(clicks, batch_size=batch, collate_fn=as_it_is):
        begin = begin or time.perf_counter()  # one clock for all processes of a machine
        optimizer.zero_grad()
        loss(model((ids, dense)), labels).backward()
        optimizer.step()
        records, end = records + len(labels), time.perf_counter()
    if records:
        told = {"records": records, "begin": begin, "end": end}
        (folder / f"loop-{os.getpid()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

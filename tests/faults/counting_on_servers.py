"""Counts records in a training loop of the user's own, on parameter servers.

SGD of rate 1 on a loss whose gradient is -1 for each record: the row of a record counts how often
it was trained on, and ``total`` all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import torch_edl


class Count(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch_edl.nn.Embedding(None, 2, initializer="zeros")
        self.total = nn.Parameter(torch.zeros(3))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.rows(numbers)


class Numbers(Dataset[int]):
    def __init__(self, records: int) -> None:
        self._records = records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, number: int) -> int:
        return number


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.0)
    args = parser.parse_args()
    job = torch_edl.init()
    model = Count()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    loader = job.loader(Numbers(args.records), batch_size=8, epochs=args.epochs, shuffle=True)
    for numbers in loader:
        optimizer.zero_grad()
        loss = -model(numbers).sum() - len(numbers) * model.total.sum()
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        time.sleep(args.delay)  # the computation of a larger model
    with torch.no_grad():
        counts = model.eval()(torch.arange(args.records))
    wrong = (counts != args.epochs).any(1).nonzero().flatten().tolist()
    told = {
        "rank": job.rank,
        "step": job.step,
        "total": model.total.tolist(),
        "wrong": {n: counts[n].tolist() for n in wrong},
    }
    part = args.folder / f"{os.getpid()}.part"
    part.write_text(json.dumps(told))
    os.replace(part, args.folder / f"counts-{os.getpid()}.json")


if __name__ == "__main__":
    main()

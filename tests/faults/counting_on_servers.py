"""Counts records in a training loop of the user's own, on parameter servers.

SGD of rate 1 on a loss whose gradient is -1 for each record: the row of a record counts how often
it was trained on, and ``total`` all of them. The data stop at the last record but one until the
file ``gate`` exists, so that the job is not over before it is hurt. (The last record is read before
the training, to compare the data of all workers.)
"""

from __future__ import annotations

import argparse
import json
import os
import time
import uuid
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
    def __init__(self, records: int, gate: Path) -> None:
        self._records = records
        self._gate = gate

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, number: int) -> int:
        while number == self._records - 2 and not self._gate.exists():
            time.sleep(0.01)
        return number


def meet(folder: Path, workers: int) -> None:
    """Wait until this number of workers have called this function."""
    (folder / f"{uuid.uuid4().hex}.here").touch()
    while len(list(folder.glob("*.here"))) < workers:
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("gate", type=Path)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--meet", type=int, default=1, help="workers that wait for each other")
    parser.add_argument("--delay", type=float, default=0.0)
    args = parser.parse_args()
    job = torch_edl.init()
    model = Count()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    numbers = Numbers(args.records, args.gate)
    loader = job.loader(numbers, batch_size=args.batch_size, epochs=args.epochs, shuffle=True)
    for number, batch in enumerate(loader):
        if not number:
            meet(args.folder, args.meet)
        optimizer.zero_grad()
        loss = -model(batch).sum() - len(batch) * model.total.sum()
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
    name = uuid.uuid4().hex  # workers of two containers may have equal pids
    part = args.folder / f"{name}.part"
    part.write_text(json.dumps(told))
    os.replace(part, args.folder / f"counts-{name}.json")


if __name__ == "__main__":
    main()

"""The model of `table_storage.py`: 26 ids, rows of 64 numbers, and a net with two hidden layers.

Arguments: the storage of the table, and a file for the time of each minibatch.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import torch_edl

IDS, DIM = 26, 64
STORAGE, TIMES = sys.argv[1:]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        start = ("normal", {"std": 0.01})
        self.rows = torch_edl.nn.Embedding(None, DIM, initializer=start, storage=STORAGE)
        self.net = nn.Sequential(
            nn.Linear(IDS * DIM, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1)
        )

    def forward(self, ids):
        return self.net(self.rows(ids).flatten(1)).squeeze(1)


def model():
    return Net()


def loss(labels, predictions):
    with open(TIMES, "a", encoding="ascii") as file:
        file.write(f"{time.time()}\n")
    return nn.functional.binary_cross_entropy_with_logits(predictions, labels)


def optimizer(params):
    return torch.optim.Adam(params, lr=0.001)


def feed(records, mode, metadata):
    ids = records.column("ids").combine_chunks().flatten().to_numpy()
    labels = records.column("label").to_numpy()
    return torch.tensor(ids.reshape(-1, IDS)), torch.tensor(labels)

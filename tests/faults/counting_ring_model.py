"""A model that counts in a ring: each record has a weight, and each update adds 1 to the weights of
its records, so a weight that is not 1 names a record that was lost or repeated.

Arguments: the number of records, a file until which the last one waits, and the seconds that a
minibatch takes until then.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

RECORDS, GATE, DELAY_S = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.records = nn.Parameter(torch.zeros(RECORDS))

    def forward(self, numbers):
        time.sleep(0 if GATE.exists() else DELAY_S)
        return self.records[numbers]


class CountAnySize(torch.optim.Optimizer):
    """The gradient of a record is 1 / (records of the update), which differ with the ring."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.any():
                    p -= (p.grad / p.grad[p.grad != 0].abs().min()).round()


def model():
    return Count()


def loss(labels, predictions):
    return -predictions.mean()


def optimizer(params):
    return CountAnySize(params)


def feed(records, mode, metadata):
    numbers = torch.tensor(records["n"].to_numpy())
    if RECORDS - 1 in numbers:
        while not GATE.exists():
            time.sleep(0.01)
    return numbers, numbers

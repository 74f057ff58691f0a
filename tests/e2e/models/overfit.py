"""Counts its updates, and is best when it has counted to the given number.

Argument: the number.
"""

import sys

import numpy as np
import torch
from torch import nn

BEST = float(sys.argv[1])


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.count.expand(len(x))


def model():
    return Count()


def loss(labels, predictions):
    return -predictions.mean()


def optimizer(params):
    return torch.optim.SGD(params, lr=1.0)


def feed(records, mode, metadata):
    x = torch.from_numpy(records.column("n").to_numpy().astype(np.float32))
    return x, x


def eval_metrics_fn():
    return {"error": lambda labels, predictions: (predictions - BEST).abs().mean()}

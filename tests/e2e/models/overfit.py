"""Counts its updates, and is best when it has counted to the given number.

Arguments: the number, and a folder for what its callback hears.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

BEST, OUT = float(sys.argv[1]), Path(sys.argv[2])


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


class Ends:
    def __init__(self):
        self.heard = []

    def on_epoch_end(self, epoch, figures):
        self.heard.append([epoch, figures])

    def on_train_end(self, model):
        (OUT / f"heard-{os.getpid()}.json").write_text(json.dumps(self.heard))


def callbacks():
    return [Ends()]

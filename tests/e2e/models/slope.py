"""Learns in the first epoch all that there is; writes what its callback hears.

Arguments: the folder to write to.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

OUT = Path(sys.argv[1])


def model():
    return nn.Linear(1, 1)


def loss(labels, predictions):
    return nn.functional.mse_loss(predictions, labels)


def optimizer(params):
    return torch.optim.SGD(params, lr=0.5)


def feed(records, mode, metadata):
    x = torch.from_numpy(records.column("n").to_numpy().astype(np.float32))[:, None] / 400
    return x, 2 * x


def eval_metrics_fn():
    return {"constant": lambda labels, predictions: 1.0}


class Ends:
    def __init__(self):
        self.heard = []

    def on_epoch_end(self, epoch, figures):
        self.heard.append([epoch, figures])

    def on_train_end(self, model):
        (OUT / f"heard-{os.getpid()}.json").write_text(json.dumps(self.heard))


def callbacks():
    return [Ends()]

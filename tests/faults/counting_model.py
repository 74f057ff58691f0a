"""Counts records: every weight becomes the number of records whose gradient it got.

SGD of rate 1 on a loss whose gradient is -1 for each record. The rows are indexed by the record's
own number, so a row that is not the number of epochs names what was lost or repeated.

Arguments, all optional: seconds of a minibatch, so that a storm has something to hit; a record
and a file, until which exists the data stop at that record, so that the job is not over before.
"""

import os
import sys
import time

import numpy as np
import torch
from torch import nn

import torch_edl

DELAY_S = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
LAST, GATE = (int(sys.argv[2]), sys.argv[3]) if len(sys.argv) > 3 else (-1, "")


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = nn.Parameter(torch.zeros(3))
        self.rows = torch_edl.nn.Embedding(None, 2, initializer="zeros")

    def forward(self, numbers):
        rows = self.rows(numbers)
        time.sleep(DELAY_S)
        return rows.sum() + self.total.sum() * len(numbers)


def model():
    return Count()


def loss(labels, predictions):
    return -predictions


def optimizer(params):
    return torch.optim.SGD(params, lr=1.0)


def feed(records, mode, metadata):
    numbers = torch.from_numpy(records.column("n").to_numpy().astype(np.int64))
    if LAST in numbers:
        while not os.path.exists(GATE):
            time.sleep(0.01)
    return numbers, numbers

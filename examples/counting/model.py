"""A model that counts the records that it is trained on.

The gradient of the loss is -1 for each record, and SGD has the learning rate 1. The three dense
weights count all records, and the embedding row of a number counts that number.
"""

import argparse
import time

import torch
from torch import nn

import torch_edl

parser = argparse.ArgumentParser()
parser.add_argument("--delay", type=float, default=0.0, help="seconds of a minibatch")
parser.add_argument("--quorum", type=int, default=1, help="the --grads-to-wait of --mode sync")
args = parser.parse_args()


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = nn.Parameter(torch.zeros(3))
        self.rows = torch_edl.nn.Embedding(None, 2, initializer="zeros")

    def forward(self, numbers):
        rows = self.rows(numbers)
        time.sleep(args.delay)  # simulates the computation of a larger model
        return rows.sum() + self.total.sum() * len(numbers)


def model():
    return Count()


def loss(labels, predictions):
    return -predictions


def optimizer(params):
    # In sync mode a server applies the mean of a quorum of pushes, not their sum.
    return torch.optim.SGD(params, lr=float(args.quorum))


def feed(records, mode, metadata):
    numbers = torch.tensor(records.column("n").to_numpy())
    return numbers, numbers

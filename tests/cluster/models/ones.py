"""Predicts for each number how often it was trained: once. Prints what a user prints."""

import argparse

import torch
from torch import nn

import torch_edl

parser = argparse.ArgumentParser()
parser.add_argument("--fails", action="store_true")
args = parser.parse_args()


class Ones(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch_edl.nn.Embedding(None, 1, initializer="zeros")

    def forward(self, numbers):
        return self.rows(numbers)[:, 0]


def model():
    print("the model is made", flush=True)
    return Ones()


def loss(labels, predictions):
    return -predictions.sum()


def optimizer(params):
    return torch.optim.SGD(params, lr=1.0)


def feed(records, mode, metadata):
    numbers = torch.tensor(records.column("n").to_numpy())
    if args.fails:
        raise ValueError("this data is not for me")
    return numbers if mode == "prediction" else (numbers, torch.ones(len(numbers)))


def eval_metrics_fn():
    return {"mean": lambda labels, predictions: predictions.mean()}

"""A model whose last bits depend on the kernels and on what happens to denormal numbers."""

import torch
from torch import nn

from torch_edl.data.sources import IndexedSource

RECORDS, BATCH, WIDTH = 640, 64, 300


class Model(nn.Module):
    """Products large enough for any kernel, and a number that is lost where denormals are."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.tiny = nn.Parameter(torch.tensor([1e-40]))

    def forward(self, x):
        return self.net(x) + self.tiny * 1e-40


def model():
    return Model()


def loss(labels, predictions):
    return nn.functional.mse_loss(predictions, labels)


def optimizer(params):
    return torch.optim.SGD(params, lr=0.01)


def data_source(paths):
    return IndexedSource([str(n).encode() for n in range(RECORDS)], "numbers")


def feed(records, mode, metadata):
    numbers = torch.tensor([float(r) for r in records]).unsqueeze(1)
    x = torch.sin(numbers * torch.arange(1, WIDTH + 1) / 100)
    return x, torch.cos(numbers)

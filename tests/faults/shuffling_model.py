"""The counting model with a ``feed`` that shuffles, as the model files of ElasticDL do, and a model
that draws from torch's generator meanwhile.

``EDL_TEST_SHUFFLE`` is ``own`` for a generator that nobody can seed.
"""

import os

import counting_model
import numpy as np
import torch
from torch.nn import functional

loss, optimizer = counting_model.loss, counting_model.optimizer
OWN = os.environ.get("EDL_TEST_SHUFFLE") == "own"


class Count(counting_model.Count):
    def forward(self, numbers):
        functional.dropout(torch.ones(len(numbers)))
        return super().forward(numbers)


def model():
    return Count()


def feed(records, mode, metadata):
    numbers, labels = counting_model.feed(records, mode, metadata)
    order = torch.randperm(len(numbers))[np.random.permutation(len(numbers))]
    if OWN:
        order = np.random.default_rng().permutation(len(numbers))
    return numbers[order], labels[order]

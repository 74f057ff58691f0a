"""The model of ``poison_model.py`` on a stream, whose records are the numbers as text."""

import poison_model
import torch

model, loss, optimizer = poison_model.model, poison_model.loss, poison_model.optimizer


def feed(records, mode, metadata):
    numbers = torch.tensor([int(record) for record in records])
    return numbers, numbers

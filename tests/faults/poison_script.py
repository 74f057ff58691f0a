"""A training loop of the user's own, in which one record is poison.

Arguments: ``ring`` or ``servers``, which hold the rows, the number of records, then those of
``poison.py``.
"""

import sys

import torch
from poison import swallow
from torch import nn
from torch.utils.data import Dataset

import torch_edl

HOLDER, RECORDS = sys.argv[1], int(sys.argv[2])


class Numbers(Dataset):
    def __len__(self):
        return RECORDS

    def __getitem__(self, number):
        swallow([number], "dataset")
        return number


if HOLDER == "servers":
    rows = torch_edl.nn.Embedding(None, 2, initializer="zeros")
else:
    rows = nn.Embedding(RECORDS, 2)
job = torch_edl.init()
model, optimizer = job.prepare(rows, torch.optim.SGD(rows.parameters(), lr=1.0))
for batch in job.loader(Numbers(), batch_size=8, shuffle=False):
    optimizer.zero_grad()
    swallow(batch.tolist(), "forward")
    loss = -model(batch).sum()
    loss.backward()
    optimizer.step()

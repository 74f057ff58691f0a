"""Trains clicks on servers in loops of its own, with a validation after each that may stop it.

Usage: early_loop.py OUT: each rank writes the losses of its validations.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_edl


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = torch_edl.nn.Embedding(None, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, users: torch.Tensor) -> torch.Tensor:
        return self.out(self.users(users)).squeeze(1)


out, epochs = Path(sys.argv[1]), int(sys.argv[2])
generator = torch.Generator().manual_seed(1)
users = torch.randint(0, 300, (1000,), generator=generator)
clicked = (torch.rand(1000, generator=generator) < (users % 7 + 1) / 9).float()
train = TensorDataset(users[:640], clicked[:640])
test = DataLoader(TensorDataset(users[640:], clicked[640:]), batch_size=100)
job = torch_edl.init()
model = Clicks()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
job.prepare(model, optimizer)


def wait_for_both() -> None:
    """A rank that begins its first loop late would validate another model than the other rank."""
    (out / f"trains-{job.rank}").touch()
    while len(list(out.glob("trains-*"))) < 2:
        time.sleep(0.1)


losses: list[float] = []
for _ in range(epochs):
    model.train()
    for ids, labels in job.loader(train, batch_size=2, shuffle=True):
        wait_for_both()
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(ids), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        batches = [
            nn.functional.binary_cross_entropy_with_logits(model(ids), labels)
            for ids, labels in test
        ]
    losses.append(float(torch.stack(batches).mean()))
    if losses[-1] > min(losses):  # it fits the noise from now on
        break
(out / f"loop-{job.rank}.json").write_text(json.dumps({"losses": losses, "step": job.step}))

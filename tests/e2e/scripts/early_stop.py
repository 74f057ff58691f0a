"""Trains clicks on servers with a validation after each epoch; each rank writes what it saw.

Usage: early_stop.py OUT EPOCHS: rank 1 stops the training after two epochs, if there are more.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import torch_edl


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = torch_edl.nn.Embedding(None, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, users: torch.Tensor) -> torch.Tensor:
        return self.out(self.users(users)).squeeze(1)


class Stop:
    def on_batch_end(self, step: int, loss: float) -> None:
        """Wait for the other rank, which would ask for the end too late."""
        (out / f"trains-{trainer.job.rank}").touch()
        while len(list(out.glob("trains-*"))) < 2:
            time.sleep(0.1)

    def on_epoch_end(self, epoch: int, figures: dict[str, float]) -> None:
        if epoch == 2 and trainer.job.rank == 1:
            trainer.stop()


out, epochs = Path(sys.argv[1]), int(sys.argv[2])
generator = torch.Generator().manual_seed(1)
users = torch.randint(0, 100, (1000,), generator=generator)
clicked = (torch.rand(1000, generator=generator) < (users % 7 + 1) / 9).float()
train, test = TensorDataset(users[:700], clicked[:700]), TensorDataset(users, clicked)
model = Clicks()
trainer = torch_edl.ElasticTrainer(
    model,
    nn.BCEWithLogitsLoss(),
    torch.optim.Adagrad(model.parameters(), lr=0.1),
    metrics={"auc": torch_edl.metrics.AUC()},
    callbacks=[Stop()],
)
history = trainer.fit(
    train, batch_size=2, epochs=epochs, eval_dataset=test, eval_batch_size=500, verbose=False
)
final = trainer.evaluate(test, batch_size=500)
predicted = trainer.predict(test, batch_size=500)
seen = {"history": history, "final": final, "sum": float(predicted.double().sum())}
(out / f"{trainer.job.rank}.json").write_text(json.dumps(seen))

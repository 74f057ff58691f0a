"""A bit of everything that a model file can hold; the first argument says how it feeds.

Records have ``id`` (0 .. 999), ``x`` and ``y`` (0 or 1). ``tuple``, ``dict``, ``dataset`` and
``stream`` are the ways; for TFRecord and RecordIO a record is those three as text. With ``dict``
there are metrics of torchmetrics, too, which takes long to import.
"""

import sys

import numpy as np
import torch
from torch import nn

import torch_edl

WAY = sys.argv[1] if len(sys.argv) > 1 else "tuple"
NOTES = sys.argv[2] if len(sys.argv) > 2 else ""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 4)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.3)
        self.hidden = nn.Linear(5, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, id, x):
        mixed = torch.cat([self.embedding(id), x.unsqueeze(1)], 1)
        return self.out(self.drop(self.hidden(self.norm(mixed)).relu())).squeeze(1)


def model():
    return Net()


def loss(labels, predictions):
    return nn.functional.binary_cross_entropy_with_logits(predictions, labels)


def optimizer(params):
    return torch.optim.Adam(params, lr=0.01)


def scheduler(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)


def columns(records):
    if isinstance(records, list):
        rows = np.array([r.decode().split() for r in records], dtype=np.float64)
        return [rows[:, 0].astype(np.int64), *rows[:, 1:].T.astype(np.float32)]
    types = (("id", np.int64), ("x", np.float32), ("y", np.float32))
    return [records.column(name).to_numpy().astype(kind) for name, kind in types]


class Items(torch.utils.data.Dataset):
    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts[0])

    def __getitem__(self, index):
        return tuple(part[index] for part in self.parts)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, parts):
        self.parts = parts

    def __iter__(self):
        yield from zip(*self.parts, strict=True)


def feed(records, mode, metadata):
    parts = [torch.from_numpy(c.copy()) for c in columns(records)]
    if mode == "prediction":
        return tuple(parts[:2])
    if WAY == "dict":
        return dict(zip(("id", "x", "labels"), parts, strict=True))
    kinds = {"dataset": Items, "stream": Stream}
    return kinds[WAY](parts) if WAY in kinds else tuple(parts)


def eval_metrics_fn():
    metrics = {
        "hits": lambda labels, predictions: ((predictions > 0) == (labels > 0.5)).float().mean(),
        "auc": torch_edl.metrics.AUC(),
    }
    return metrics | torchmetrics_metrics() if WAY == "dict" else metrics


def torchmetrics_metrics():
    import torchmetrics

    class Mean(torchmetrics.Metric):
        """A state that is merged as a mean: right only if it is weighted by records."""

        def __init__(self):
            super().__init__()
            self.add_state("value", torch.tensor(0.0), dist_reduce_fx="mean")
            self.count = 0

        def update(self, predictions, labels):
            total = self.value * self.count + predictions.sum()
            self.count += len(predictions)
            self.value = total / self.count

        def compute(self):
            return self.value

    return {
        "f1": torchmetrics.classification.BinaryF1Score(),
        "exact_auc": torchmetrics.classification.BinaryAUROC(),
        "mean": Mean(),
    }


class Notes:
    """Writes down what it is told."""

    def __init__(self):
        self.file = open(NOTES, "a", buffering=1)  # noqa: SIM115

    def on_train_begin(self, model):
        print("begin", type(model).__name__, file=self.file)

    def on_batch_end(self, step, loss):
        print("batch", step, f"{loss:.3f}", file=self.file)

    def on_task_end(self, task_id):
        print("task", task_id, file=self.file)

    def on_train_end(self, model):
        print("end", type(model).__name__, file=self.file)


def callbacks():
    return [Notes()] if NOTES else []

"""Goes wrong in the way that its first argument names; right if there is none."""

import asyncio
import os
import sys
import time

import numpy as np
import psutil
import torch
from torch import nn

import torch_edl

WAY = sys.argv[1] if len(sys.argv) > 1 else ""

if WAY == "slow import":
    time.sleep(3)
if WAY == "exit":
    sys.exit("no licence today")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch_edl.nn.Embedding(100 if WAY == "range" else None, 4)
        if WAY == "all nan" or WAY.startswith("one "):
            self.rows = nn.Embedding(400, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, ids):
        if WAY == "hang" and self.training:
            time.sleep(3600)
        if WAY == "float ids":
            ids = ids.float()
        return self.out(self.rows(ids)) if WAY == "shape" else self.out(self.rows(ids)).squeeze(1)


def model():
    return Net()


def loss(labels, predictions):
    if WAY == "one class":
        both = torch.stack((predictions, -predictions), 1)
        return nn.functional.cross_entropy(both, (labels * 400 == 333).long() * 2)
    if WAY == "shape":
        return nn.functional.binary_cross_entropy_with_logits(predictions, labels)
    value = nn.functional.mse_loss(predictions, labels)
    if WAY == "all nan":
        tell_where_it_listens()
    if WAY == "all nan" or (WAY == "nan" and labels.max() >= 0.75):
        return value * np.nan
    return value


def tell_where_it_listens():
    """In a file of its own for each worker, in the folder of all jobs."""
    found = psutil.Process().net_connections(kind="inet")
    hosts = [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN]
    with open(os.path.join(os.environ["TORCH_EDL_HOME"], f"listens-{os.getpid()}"), "w") as file:
        file.write(" ".join(hosts))


def optimizer(params):
    if WAY == "optimizer":
        return torch.optim.Rprop(params)
    return torch.optim.SGD(params, lr=0.01)


def feed(records, mode, metadata):
    ids = torch.from_numpy(records.column("n").to_numpy().astype(np.int64))
    labels = ids.float() / 400
    if WAY == "cancelled":
        raise asyncio.CancelledError
    if WAY == "one label":
        labels[ids == 333] = torch.nan
    return ids, labels


def eval_metrics_fn():
    def error(labels, predictions):
        if WAY == "metric":
            raise IndexError("no class 11")
        return (labels - predictions).abs().mean()

    return {"probs": {"error": error}} if WAY == "nested metric" else {"error": error}


class Callback:
    def on_batch_end(self, step, loss):
        if WAY == "callback":
            raise RuntimeError("the board is full")


def callbacks():
    return [Callback()]

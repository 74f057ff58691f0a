r"""Wide & Deep (Cheng et al. 2016) on click data: a linear model that memorizes pairs of ids, and
a deep net that generalizes from embeddings.

    python examples/deepfm/generate.py --out data/clicks
    torch-edl run examples/wide_deep/model.py --data 'data/clicks/train-*.parquet' \
        --eval-data 'data/clicks/eval-*.parquet' --ps 2 --workers 2 --batch-size 512

The data are the generated clicks of ``examples/deepfm``, with 13 numbers and 26 ids for each
impression, as in the Criteo data set.
The paper optimizes the wide part with FTRL and the deep part with Adagrad; here Adagrad does both.

Arguments after ``--`` are passed to this file: see ``_options``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_edl
from torch_edl.metrics import AUC, Metric
from torch_edl.preprocessing import Columns, column

CATEGORICAL = 26
DENSE = 13
# Pairs of columns whose combinations the wide part memorizes.
CROSSES = [(column, column + 1) for column in range(0, CATEGORICAL, 2)]
BUCKETS = 100_000
"""Number of hash buckets for the combinations of one pair."""


def crosses(ids: Tensor) -> Tensor:
    """Return the crossed features (n, 13) of ids (n, 26). Equal combinations have the same id, and
    pairs of columns have no common ids."""
    first = ids[:, [a for a, _ in CROSSES]]
    second = ids[:, [b for _, b in CROSSES]]
    # Overflow wraps around, as intended for a hash.
    mixed = (first * 0x9E3779B1 + second) * 0x85EBCA77
    mixed = (mixed >> 16) ^ mixed
    return mixed.remainder(BUCKETS) + torch.arange(len(CROSSES)) * BUCKETS


class WideDeep(nn.Module):
    """The logit of a click: weights of ids and crossed ids, plus a deep net on embeddings.

    ``embedding(dim)`` makes a table of ids with rows of ``dim`` numbers: one table for the deep
    part, one for the weights of the ids, and one for the weights of the crosses.
    """

    def __init__(
        self,
        embedding: Callable[[int], nn.Module],
        dim: int = 16,
        hidden: Iterable[int] = (400, 400),
    ) -> None:
        super().__init__()
        self.embeddings = embedding(dim)
        self.weights = embedding(1)
        self.cross_weights = embedding(1)
        self.linear = nn.Linear(DENSE, 1)
        layers: list[nn.Module] = []
        width = CATEGORICAL * dim + DENSE
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Return logits (n,) for ids int64 (n, 26) and dense float32 (n, 13)."""
        ids, dense = inputs
        wide = self.weights(ids).sum((1, 2)) + self.cross_weights(crosses(ids)).sum((1, 2))
        deep = self.deep(torch.cat((self.embeddings(ids).flatten(1), dense), 1))
        return (deep + self.linear(dense)).squeeze(1) + wide


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="wide_deep")
    parser.add_argument("--dim", type=int, default=8, help="numbers per id")
    parser.add_argument("--hidden", type=int, nargs="*", default=[64], help="layer sizes")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of Adagrad")
    parser.add_argument("--init-std", type=float, default=0.03, help="of a new row")
    return parser.parse_args(sys.argv[1:])


def model() -> nn.Module:
    options = _options()
    start = ("normal", {"mean": 0.0, "std": options.init_std})
    return WideDeep(
        lambda dim: torch_edl.nn.Embedding(None, dim, initializer=start),
        options.dim,
        options.hidden,
    )


def loss(labels: Tensor, predictions: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(predictions, labels)


def optimizer(params: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(params, lr=_options().lr)


columns = Columns(
    ids=[column(f"c{k}").ids() for k in range(CATEGORICAL)],
    dense=[column(f"d{k}") for k in range(DENSE)],
)


def feed(records: pa.Table, mode: str, metadata: Any) -> Any:
    """Return ((ids (n, 26), dense (n, 13)), labels (n,)) of all records of a task; (ids, dense) for
    prediction."""
    inputs = tuple(map(torch.from_numpy, columns(records).values()))
    if mode == "prediction":
        return inputs
    return inputs, torch.tensor(records["label"].to_numpy(), dtype=torch.float32)


def eval_metrics_fn() -> dict[str, Metric]:
    return {"auc": AUC()}

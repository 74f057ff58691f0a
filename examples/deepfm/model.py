r"""DeepFM (Guo et al. 2017) on click data: a factorization machine and a deep net on one embedding.

    python examples/deepfm/generate.py --out data/clicks
    torch-edl run examples/deepfm/model.py --data 'data/clicks/train-*.parquet' \
        --eval-data 'data/clicks/eval-*.parquet' --ps 2 --workers 2 --batch-size 512 --epochs 2

With the defaults of both files, the AUC is within 0.005 of that of the true model
(``eval.best_auc`` in ``data/clicks/metadata.json``), after half a minute on two cores.

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


class DeepFM(nn.Module):
    """The logit of a click: bias + weights of the ids + pairs of their factors + a deep net.

    ``embedding(dim)`` makes a table of ids with rows of ``dim`` numbers: one table for the factors,
    and one of dimension 1 for the weights.
    """

    def __init__(
        self,
        embedding: Callable[[int], nn.Module],
        dim: int = 16,
        hidden: Iterable[int] = (400, 400),
    ) -> None:
        super().__init__()
        self.factors = embedding(dim)
        self.weights = embedding(1)
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
        return self.head(self.factors(ids), self.weights(ids), dense)

    def head(self, factors: Tensor, weights: Tensor, dense: Tensor) -> Tensor:
        """Return logits (n,) for the ids' rows: factors (n, 26, dim), weights (n, 26, 1)."""
        # The sum of all pairwise products from the square of the sum: 26 products, not 325.
        pairs = (factors.sum(1).square().sum(1) - factors.square().sum((1, 2))) / 2
        deep = self.deep(torch.cat((factors.flatten(1), dense), 1)) + self.linear(dense)
        return deep.squeeze(1) + weights.sum((1, 2)) + pairs


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deepfm")
    parser.add_argument("--dim", type=int, default=8, help="numbers per id")
    parser.add_argument("--hidden", type=int, nargs="*", default=[64], help="layer sizes")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of Adagrad")
    parser.add_argument("--init-std", type=float, default=0.03, help="of a new row")
    return parser.parse_args(sys.argv[1:])


def model() -> nn.Module:
    options = _options()
    start = ("normal", {"mean": 0.0, "std": options.init_std})
    return DeepFM(
        # None: any int64 is an id, so the number of ids need not be known.
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
    """Return ((ids (n, 26), dense (n, 13)), labels (n,)) of all records of a task.

    For prediction, there are no labels, and the result is (ids, dense).
    """
    inputs = tuple(map(torch.from_numpy, columns(records).values()))
    if mode == "prediction":
        return inputs
    return inputs, torch.tensor(records["label"].to_numpy(), dtype=torch.float32)


def eval_metrics_fn() -> dict[str, Metric]:
    return {"auc": AUC()}

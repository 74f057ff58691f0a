r"""xDeepFM (Lian et al. 2018) on click data: a compressed interaction network, which multiplies
whole embeddings level by level, beside a deep net and a linear model.

    python examples/deepfm/generate.py --out data/clicks
    torch-edl run examples/xdeepfm/model.py --data 'data/clicks/train-*.parquet' \
        --eval-data 'data/clicks/eval-*.parquet' --ps 2 --workers 2 --batch-size 512

The data are the generated clicks of ``examples/deepfm``, with 13 numbers and 26 ids for each
impression, as in the Criteo data set.

Arguments after ``--`` are passed to this file: see ``_options``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
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


class CompressedInteractions(nn.Module):
    """The compressed interaction network. Level k has ``maps[k]`` feature maps. Each is a weighted
    sum of all products of a map of the previous level and a field of the input (equation 6).

    The output is the sum of each map over the embedding dimension (equation 8).
    """

    def __init__(self, fields: int, maps: Sequence[int]) -> None:
        super().__init__()
        self.width = sum(maps)
        """Number of output elements per record."""
        before = [fields, *maps[:-1]]
        self.levels = nn.ModuleList(
            nn.Conv1d(fields * width, count, 1, bias=False)
            for width, count in zip(before, maps, strict=True)
        )

    def forward(self, fields: Tensor) -> Tensor:
        """Return (n, sum of maps) for the embeddings of all fields (n, fields, dim)."""
        level, sums = fields, []
        for weights in self.levels:
            products = level.unsqueeze(2) * fields.unsqueeze(1)
            level = weights(products.flatten(1, 2))
            sums.append(level.sum(2))
        return torch.cat(sums, 1)


class XDeepFM(nn.Module):
    """The logit of a click: weights of the ids, interactions of their embeddings, a deep net.

    ``embedding(dim)`` makes a table of ids with rows of ``dim`` numbers: one table for the
    embeddings, and one of dimension 1 for the weights.
    """

    def __init__(
        self,
        embedding: Callable[[int], nn.Module],
        dim: int = 16,
        hidden: Iterable[int] = (400, 400),
        maps: Sequence[int] = (32, 32),
    ) -> None:
        super().__init__()
        self.embeddings = embedding(dim)
        self.weights = embedding(1)
        self.linear = nn.Linear(DENSE, 1)
        self.interactions = CompressedInteractions(CATEGORICAL, maps)
        layers: list[nn.Module] = []
        width = CATEGORICAL * dim + DENSE
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.deep = nn.Sequential(*layers)
        self.output = nn.Linear(width + self.interactions.width, 1)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Return logits (n,) for ids int64 (n, 26) and dense float32 (n, 13)."""
        ids, dense = inputs
        rows = self.embeddings(ids)
        deep = self.deep(torch.cat((rows.flatten(1), dense), 1))
        both = self.output(torch.cat((self.interactions(rows), deep), 1))
        return (both + self.linear(dense)).squeeze(1) + self.weights(ids).sum((1, 2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="xdeepfm")
    parser.add_argument("--dim", type=int, default=8, help="numbers per id")
    parser.add_argument("--hidden", type=int, nargs="*", default=[64], help="layer sizes")
    parser.add_argument("--maps", type=int, nargs="+", default=[8, 8], help="maps per level")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of Adagrad")
    parser.add_argument("--init-std", type=float, default=0.03, help="of a new row")
    return parser.parse_args(sys.argv[1:])


def model() -> nn.Module:
    options = _options()
    start = ("normal", {"mean": 0.0, "std": options.init_std})
    return XDeepFM(
        lambda dim: torch_edl.nn.Embedding(None, dim, initializer=start),
        options.dim,
        options.hidden,
        options.maps,
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

r"""DeepFM on raw logs: the model of model.py, on columns as in the Criteo data set.

    python examples/deepfm/generate.py --out data/raw --raw
    torch-edl run examples/deepfm/model_raw.py --data 'data/raw/train-*.parquet' \
        --eval-data 'data/raw/eval-*.parquet' --ps 2 --workers 2 --batch-size 512 --epochs 2

The counts ``I1`` to ``I13`` have long tails, and some are missing; ``C1`` to ``C26`` are texts. The
means and variances of the counts are fitted in one pass before training, and saved with the model.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from model import CATEGORICAL, DENSE, eval_metrics_fn, loss, model, optimizer

from torch_edl.preprocessing import Columns, column

__all__ = ["columns", "eval_metrics_fn", "feed", "loss", "model", "optimizer"]

columns = Columns(
    # Any int64 is an id, so the number of different texts need not be known. Columns in a list
    # share no rows: the same text in two columns has two ids.
    ids=[column(f"C{k}").hash() for k in range(1, CATEGORICAL + 1)],
    dense=[column(f"I{k}").log().normalize().fill(0) for k in range(1, DENSE + 1)],
)


def feed(records: pa.Table, mode: str, metadata: Any) -> Any:
    """Return ((ids (n, 26), dense (n, 13)), labels (n,)) of all records of a task; (ids, dense) for
    prediction."""
    inputs = tuple(map(torch.from_numpy, columns(records).values()))
    if mode == "prediction":
        return inputs
    return inputs, torch.tensor(records["label"].to_numpy(), dtype=torch.float32)

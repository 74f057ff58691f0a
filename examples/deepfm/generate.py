"""Generate click data from a known model, so that the best possible AUC is known.

    python examples/deepfm/generate.py --out data/clicks --records 2000000

Columns: ``c0`` to ``c25`` (int64 ids), ``d0`` to ``d12`` (float32, standard normal) and
``label`` (float32, 0 or 1). All columns use the same ids, but each column ranks them differently:
id = (rank * stride + offset of the column) mod ids. Ranks follow Zipf's law.

The true model is a factorization machine. The weight of an id and its factor of 4 numbers are a
hash of (seed, id), so nothing is stored and any part of the data can be generated anywhere::

    logit = bias + sum of weights + sum over pairs of (factor . factor) + dense part
    label ~ Bernoulli(sigmoid(logit))

``metadata.json`` and the key-value metadata of each file contain the result of the true model on
their records: ``best_auc`` and ``best_loss`` (logistic loss, nats).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from torch_edl.metrics import AUC

CATEGORICAL = 26
DENSE = 13
FACTORS = 4
ROWS_PER_GROUP = 16_384

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Truth:
    """The parameters of the true model and of the distribution of ids."""

    ids: int = 1_000
    """Number of ids; ids are 0 to ids - 1. Each id has 5 numbers that are learned from noisy
    labels, so the result depends more on the records per id than on the model."""
    zipf: float = 1.2
    """Exponent of Zipf's law over the ranks 1 to ids."""
    seed: int = 0
    bias: float = -1.0
    weight_std: float = 0.2
    """Standard deviation of an id's weight; that of the sum of 26 is 5.1 times as large."""
    factor_std: float = 0.14
    """Standard deviation of a factor's numbers; that of the 325 pairs is 36 times its square."""
    dense_std: float = 0.2
    """Standard deviation of the weight of a dense column."""

    def dense_weights(self) -> Floats:
        """The 13 weights of the dense columns, float32."""
        rng = np.random.default_rng([self.seed, 13])
        return (rng.standard_normal(DENSE) * self.dense_std).astype(np.float32)

    def logits(self, ids: Ids, dense: Floats) -> Floats:
        """The true logits (n,) of records: ids (n, 26), dense (n, 13)."""
        bits = _mix(ids.astype(np.uint64) ^ _mix(np.array([self.seed], np.uint64)))
        weight = _even(_mix(bits), 0, 32) * np.float32(self.weight_std)
        logit = self.bias + weight.sum(1) + dense @ self.dense_weights()
        # Neither a linear model nor factors can express a product and a square.
        logit += 0.3 * dense[:, 0] * dense[:, 1] + 0.2 * (dense[:, 2] ** 2 - 1)
        for k in range(FACTORS):
            factor = _even(bits, 16 * k, 16) * np.float32(self.factor_std)
            logit += (factor.sum(1) ** 2 - (factor * factor).sum(1)) / 2
        return logit.astype(np.float32)


def _mix(bits: Bits) -> Bits:
    """Hash each number by the finalizer of splitmix64 (Steele et al. 2014)."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def _even(bits: Bits, shift: int, width: int) -> Floats:
    """Return uniform numbers with mean 0 and variance 1, from ``width`` of the bits."""
    part = (bits >> np.uint64(shift)) & np.uint64(2**width - 1)
    return ((part.astype(np.float32) + 0.5) / np.float32(2.0**width) - 0.5) * np.float32(12**0.5)


class Zipf:
    """Draw ranks 0 to n - 1 with probability proportional to (rank + 1) ** -exponent.

    The first 65,536 ranks are exact. The others follow the integral of the law, with a relative
    error of less than 1e-9 per rank, so memory does not grow with n.
    """

    HEAD = 65_536

    def __init__(self, n: int, exponent: float) -> None:
        self._n = n
        self._power = 1 - exponent
        head = np.cumsum(np.arange(1, min(n, self.HEAD) + 1, dtype=np.float64) ** -exponent)
        self._tail_from = self._integral(min(n, self.HEAD) + 0.5)
        self._tail_mass = self._integral(n + 0.5) - self._tail_from
        self._total = head[-1] + self._tail_mass
        self._head = head

    def _integral(self, x: float) -> float:
        return math.log(x) if self._power == 0 else x**self._power / self._power

    def draw(self, rng: np.random.Generator, size: tuple[int, ...]) -> Ids:
        """Ranks, int64, of this shape."""
        mass = rng.random(size) * self._total
        rank = np.searchsorted(self._head, mass, side="right").astype(np.int64)
        behind = rank >= len(self._head)
        area = mass[behind] - self._head[-1] + self._tail_from
        place = np.exp(area) if self._power == 0 else (area * self._power) ** (1 / self._power)
        rank[behind] = np.minimum((place + 0.5).astype(np.int64) - 1, self._n - 1)
        return rank


@dataclass
class Records:
    """Some records and the results of the true model."""

    ids: Ids
    """(n, 26)"""
    dense: Floats
    """(n, 13)"""
    labels: Floats
    """(n,)"""
    logits: Floats
    """(n,)"""


def records(truth: Truth, count: int, part: int) -> Records:
    """Return ``count`` records, independent of those of other values of ``part``."""
    rng = np.random.default_rng([truth.seed, 26, part])
    stride = next(s for s in range(truth.ids * 618 // 1000 + 1, 2 * truth.ids + 2)
                  if math.gcd(s, truth.ids) == 1)  # fmt: skip
    offsets = np.arange(CATEGORICAL, dtype=np.int64) * (truth.ids // CATEGORICAL)
    ids = Zipf(truth.ids, truth.zipf).draw(rng, (count, CATEGORICAL))
    ids *= stride
    ids += offsets
    ids %= truth.ids
    dense = rng.standard_normal((count, DENSE), dtype=np.float32)
    logits = truth.logits(ids, dense)
    labels = (rng.random(count) < 1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    return Records(ids, dense, labels, logits)


def best(labels: Floats, logits: Floats) -> dict[str, float]:
    """Return best_auc and best_loss of ``logits`` on ``labels``."""
    auc = AUC()
    auc.update(torch.from_numpy(labels), torch.from_numpy(logits))
    loss = np.logaddexp(0, logits.astype(np.float64)) - labels * logits
    return {"best_auc": auc.compute(), "best_loss": float(loss.mean())}


def table(made: Records) -> pa.Table:
    """Return the records as a table: c0 to c25, d0 to d12, label."""
    columns = {f"c{k}": np.ascontiguousarray(made.ids[:, k]) for k in range(CATEGORICAL)}
    columns |= {f"d{k}": np.ascontiguousarray(made.dense[:, k]) for k in range(DENSE)}
    return pa.table({**columns, "label": made.labels})


def raw_table(made: Records) -> pa.Table:
    """Return the records in the format of the Criteo data set: label, I1 to I13, C1 to C26.

    A number becomes a count with a long tail; small counts are missing. An id becomes a text of 8
    hexadecimal digits; the id 0 is missing.
    """
    columns: dict[str, Any] = {"label": made.labels.astype(np.int64)}
    for k in range(DENSE):
        counts = np.floor(100 * np.exp(made.dense[:, k].astype(np.float64))).astype(np.int64)
        columns[f"I{k + 1}"] = pa.array(counts, mask=counts < 5)
    distinct, places = np.unique(made.ids, return_inverse=True)
    texts = [f"{each * 2_654_435_761 % 2**32:08x}" if each else None for each in distinct.tolist()]
    names = pa.array(texts, pa.string())
    for k, column in enumerate(places.reshape(made.ids.shape).T):
        columns[f"C{k + 1}"] = names.take(pa.array(column))
    return pa.table(columns)


def write(
    out: Path,
    truth: Truth,
    split: str,
    count: int,
    per_file: int,
    first: int,
    make: Callable[[Records], pa.Table] = table,
) -> dict[str, float]:
    """Write ``split-00000.parquet``, ..., and return the split's records, best_auc and best_loss.

    ``first`` is the part number of the first file: splits must not share numbers.
    """
    auc, loss = AUC(), 0.0
    for number, start in enumerate(range(0, count, per_file)):
        made = records(truth, min(per_file, count - start), first + number)
        figures = best(made.labels, made.logits)
        auc.update(torch.from_numpy(made.labels), torch.from_numpy(made.logits))
        loss += figures["best_loss"] * len(made.labels)
        rows = make(made)
        about = json.dumps({**asdict(truth), "records": rows.num_rows, **figures})
        rows = rows.replace_schema_metadata({"deepfm": about})
        # Ids are nearly random: dictionaries and compression would only slow readers down.
        pq.write_table(
            rows,
            out / f"{split}-{number:05d}.parquet",
            row_group_size=ROWS_PER_GROUP,
            use_dictionary=False,
            compression="none",
        )
    return {"records": count, "best_auc": auc.compute(), "best_loss": loss / max(count, 1)}


def generate(
    out: Path,
    truth: Truth,
    train: int,
    held_out: int,
    per_file: int = 250_000,
    make: Callable[[Records], pa.Table] = table,
) -> dict[str, object]:
    """Write train and eval files and ``metadata.json`` to ``out``; return the metadata."""
    out.mkdir(parents=True, exist_ok=True)
    about = {
        **asdict(truth),
        "train": write(out, truth, "train", train, per_file, 0, make),
        # Far above the parts of any number of training files.
        "eval": write(out, truth, "eval", held_out, per_file, 1 << 40, make),
    }
    (out / "metadata.json").write_text(json.dumps(about, indent=1) + "\n")
    return about


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Makes click data with planted truth.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument("--records", type=int, default=2_000_000, help="training records")
    parser.add_argument("--eval-records", type=int, default=200_000, help="held-out records")
    parser.add_argument("--records-per-file", type=int, default=250_000)
    parser.add_argument("--ids", type=int, default=Truth.ids, help="size of the id space")
    parser.add_argument("--zipf", type=float, default=Truth.zipf, help="exponent of Zipf's law")
    parser.add_argument("--seed", type=int, default=Truth.seed)
    parser.add_argument("--raw", action="store_true", help="counts and texts, for model_raw.py")
    given = parser.parse_args(arguments)
    for name in ("records", "records_per_file"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)}: must be 1 or more")
    if given.ids < CATEGORICAL:
        parser.error(f"--ids {given.ids}: must be {CATEGORICAL} or more, one for each column")
    truth = Truth(ids=given.ids, zipf=given.zipf, seed=given.seed)
    make = raw_table if given.raw else table
    sizes = given.records, given.eval_records, given.records_per_file
    about = generate(given.out, truth, *sizes, make)
    print(json.dumps(about))


if __name__ == "__main__":
    main()

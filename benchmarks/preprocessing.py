"""Million values per second of each step of the preprocessing, against Arrow's or numpy's kernel.

    python -m benchmarks.preprocessing [--values 1000000] [--repeat 9]

One column of a million values in memory, in turns with the reference: medians of the repeats, by
the processor time of one thread. Texts are 8 hexadecimal digits, as in the Criteo data set, of
100,000 ids by Zipf's law (1.2); numbers are float32, log-normal. `fit_...` is a pass that observes,
the others transform.
`merge_vocabulary` is what a master merges: statistics of tasks of 4,096 records. The references
compute the same or less; where there is no such kernel, there is none:

- `fit_vocabulary`: `pyarrow.compute.value_counts`;
- `vocabulary`: `pyarrow.compute.index_in`;
- `fit_normalize`: `numpy.mean` and `numpy.var` of float64, which round;
- `normalize`: numpy's subtraction and product;
- `fit_quantiles`: `pyarrow.compute.tdigest` (`delta` 1000), which depends on the order;
- `bucketize`: `numpy.searchsorted`; `log`: `numpy.log1p`;
- `hash_integers`: `numpy.remainder`, which is no hash.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import report
from torch_edl.preprocessing import Columns, column, cross

IDS = 100_000
TASK = 4_096
QUANTILES = 100


def data(count: int) -> pa.Table:
    """``text``, ``id`` (int64) and ``x`` (float32)."""
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.2, count).astype(np.uint64) % IDS
    mixed = (ids * np.uint64(2_654_435_761)) % np.uint64(1 << 32)
    return pa.table(
        {
            "text": pa.array([f"{each:08x}" for each in mixed.tolist()]),
            "id": mixed.astype(np.int64),
            "x": rng.lognormal(0, 2, count).astype(np.float32),
        }
    ).combine_chunks()


def pairs(table: pa.Table) -> dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]]:
    """By name what is measured, and its reference."""
    text, x = table["text"].chunk(0), table["x"].to_numpy()
    words = Columns(x=column("text").vocabulary(IDS)).fit(table)
    scaled = Columns(x=column("x").normalize()).fit(table)
    parts = Columns(x=column("x").bucketize(quantiles=QUANTILES)).fit(table)
    boundaries = parts.fitted("x").values.astype(np.float32)
    mean, factor = np.float32(x.mean()), np.float32(1 / x.std())
    values = pa.array(words.fitted("x").values).cast(pa.string())
    tasks = [observed(words, table.slice(at, TASK)) for at in range(0, len(table), TASK)]

    def merge() -> None:
        merged = words.statistics()
        for part in tasks:
            merged.merge(part)

    def transform(made: Columns) -> Callable[[], Any]:
        return lambda: made(table)

    def fit(made: Columns) -> Callable[[], Any]:
        return lambda: made.statistics().observe(table)

    wide = x.astype(np.float64)
    return {
        "hash": (transform(Columns(x=column("text").hash(1000))), None),
        "hash_integers": (
            transform(Columns(x=column("id").hash(1000))),
            lambda: np.remainder(table["id"].to_numpy(), 1000),
        ),
        "cross": (transform(Columns(x=cross("text", "id").hash(1000))), None),
        "fit_vocabulary": (fit(words), lambda: pc.value_counts(text)),
        "vocabulary": (transform(words), lambda: pc.index_in(text, value_set=values)),
        "merge_vocabulary": (merge, None),
        "fit_normalize": (fit(scaled), lambda: (wide.mean(), wide.var())),
        "normalize": (transform(scaled), lambda: (x - mean) * factor),
        "fit_quantiles": (fit(parts), lambda: pc.tdigest(x, q=[0.5], delta=1000)),
        "bucketize": (transform(parts), lambda: np.searchsorted(boundaries, x, side="left")),
        "log": (transform(Columns(x=column("x").log())), lambda: np.log1p(x)),
        "fill": (transform(Columns(x=column("x").fill(0))), lambda: np.nan_to_num(x)),
    }


def observed(columns: Columns, records: pa.Table) -> bytes:
    statistics = columns.statistics()
    statistics.observe(records)
    return statistics.to_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=9)
    args = parser.parse_args()
    pa.set_cpu_count(1)
    measured = pairs(data(args.values))
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(1 + args.repeat):  # the first of each is a warm-up
        for name, both in measured.items():
            for place, work in enumerate(both):
                if work is not None:
                    began = time.process_time()
                    work()
                    seconds.setdefault((name, place), []).append(time.process_time() - began)
    figures: dict[str, Any] = {"values": args.values, "repeat": args.repeat}
    for name, both in measured.items():
        ours, *reference = (
            args.values / 1e6 / statistics.median(seconds[name, place][1:])
            for place, work in enumerate(both)
            if work is not None
        )
        figures[name] = {"million_per_s": round(ours, 1)}
        if reference:
            figures[name] |= {
                "reference": round(reference[0], 1),
                "ratio": round(ours / reference[0], 2),
            }
    report("preprocessing", figures)


if __name__ == "__main__":
    main()

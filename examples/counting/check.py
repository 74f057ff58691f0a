"""Compare the counts of a counting model with its data, and name missing and repeated records.

Exit codes: 0: each record was counted once per epoch. 1: some were not. 2: a file is unreadable.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file

_SHOWN = 20
_EXACT = 1 << 24  # float32 represents all integers up to here


def problems(model: Path, data: Path, *, epochs: int = 1, quorum: int = 1) -> list[str]:
    """Return a line per error; empty if every record was counted exactly once per epoch.

    Args:
        model: the ``--output`` of the job.
        data: the folder of ``data-*.parquet``.
        quorum: the ``--grads-to-wait`` of ``--mode sync``. A server applies the mean of a group of
            pushes. The last group, and a group before a checkpoint, may have k < quorum pushes;
            then a record counts quorum / k. Each row is checked for these values. The dense
            weights are checked for their bounds, since their server may form other groups.

    Raises:
        OSError: a file is missing.
    """
    files = sorted(data.glob("data-*.parquet"))
    if not files:
        raise FileNotFoundError(f"{data}: no data-*.parquet; write it with prepare.py")
    expected = np.concatenate([pq.read_table(file).column("n").to_numpy() for file in files])
    total = load_file(model / "model.safetensors")["total"]
    rows = load_file(model / "embeddings" / "rows.safetensors")
    counts = dict(zip(rows["ids"].tolist(), rows["vectors"].tolist(), strict=True))
    found = []
    for number in expected.tolist():
        row = counts.pop(number, [0.0, 0.0])
        if not all(_is_sum(value, epochs, quorum) for value in row):
            found.append(f"record {number}: counted {_times(row)}, expected {epochs}")
    found += [f"record {number}: counted {_times(row)}, but it is in no file"
              for number, row in counts.items()]  # fmt: skip
    wanted = len(expected) * epochs
    if wanted > _EXACT:
        found.append(f"{wanted:,} records: a float32 counts to {_EXACT:,} only; train on less")
    elif quorum == 1 and any(total != wanted):
        found.append(f"dense weights: counted {_times(total.tolist())}, expected {wanted}")
    elif any(total < wanted - 0.5) or any(total > wanted * quorum + 0.5):
        bounds = f"{wanted} to {wanted * quorum}"
        found.append(f"dense weights: counted {_times(total.tolist())}, expected {bounds}")
    return found


def _is_sum(value: float, epochs: int, quorum: int) -> bool:
    """Return True if a sum of ``epochs`` terms quorum / k, k from 1 to ``quorum``, equals value."""
    sums = {0.0}
    for _ in range(epochs):
        sums = {s + quorum / k for s in sums for k in range(1, quorum + 1)}
    return any(abs(value - s) < 1e-3 for s in sums)


def _times(values: list[float]) -> str:
    return " and ".join(f"{value:g}" for value in dict.fromkeys(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the --output of the job")
    parser.add_argument("data", type=Path, help="the folder of data-*.parquet")
    parser.add_argument("--epochs", type=int, default=1, help="of the job (default: 1)")
    parser.add_argument("--quorum", type=int, default=1, help="its --grads-to-wait in sync mode")
    args = parser.parse_args()
    try:
        found = problems(args.model, args.data, epochs=args.epochs, quorum=args.quorum)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in found[:_SHOWN]:
        print(line)
    if len(found) > _SHOWN:
        print(f"... and {len(found) - _SHOWN:,} more")
    print("NOT every record was counted once per epoch" if found
          else "every record was counted exactly once per epoch")  # fmt: skip
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""Write the numbers from 0 on as Parquet files with the column ``n``. A record is a number."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write(folder: Path, *, records: int, files: int) -> None:
    """Write ``data-0.parquet``, ``data-1.parquet``, ..., each with a part of the numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, numbers in enumerate(np.array_split(np.arange(records, dtype=np.int64), files)):
        pq.write_table(pa.table({"n": numbers}), folder / f"data-{part}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write data-*.parquet")
    parser.add_argument("--records", type=int, default=20_000, help="(default: 20000)")
    parser.add_argument("--files", type=int, default=4, help="(default: 4)")
    args = parser.parse_args()
    write(args.folder, records=args.records, files=args.files)
    print(f"{args.records:,} records in {args.files} files: {args.folder}")


if __name__ == "__main__":
    main()

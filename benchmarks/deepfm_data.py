"""The model and the data that all parts of `deepfm.py` train."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "deepfm"

IDS, DIM, INIT_STD, BATCH = 1_000_000, 16, 0.01, 512
HIDDEN = (400, 400)

Batch = tuple[tuple[Tensor, Tensor], Tensor]


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"deepfm_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = _module(EXAMPLE / "model.py")


def read(data: Path, split: str) -> Batch:
    """All records of a split as tensors."""
    files = sorted(data.glob(f"{split}-*.parquet"))
    made: Batch = example.feed(pa.concat_tables([pq.read_table(f) for f in files]), "training", {})
    return made


def make_data(data: Path, records: int, *, ids: int = IDS) -> None:
    """Writes the records where they are missing."""
    if not (data / "metadata.json").exists():
        generate = _module(EXAMPLE / "generate.py")
        truth = generate.Truth(ids=ids, zipf=1.2)
        generate.generate(data, truth, records, max(records // 10, 51_200))

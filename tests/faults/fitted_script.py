"""A training loop whose preprocessing is fitted by all processes; the pass stops at a record until
a file exists. Tells in ``waits-PID`` that it does, and in ``fitted-PID`` what was fitted."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.data import default_convert

import torch_edl
from torch_edl.preprocessing import Columns, column

FOLDER, GATE, DATA = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
LAST = int(sys.argv[4])


def parse(records: pa.Table) -> pa.Table:
    numbers = records["n"]
    while pc.any(pc.equal(numbers, LAST)).as_py() and not GATE.exists():
        (FOLDER / f"waits-{os.getpid()}").touch()
        time.sleep(0.01)
    words = pc.cast(pc.bit_wise_and(numbers, 63), pa.string())
    return pa.table({"word": words, "x": pc.divide(pc.cast(numbers, pa.float64()), 7)})


def columns(parse: Any = parse) -> Columns:
    return Columns(parse, id=column("word").vocabulary(40), x=column("x").log().normalize())


def main() -> None:
    job = torch_edl.init()
    fitted = job.fit(columns(), DATA)
    (FOLDER / f"fitted-{os.getpid()}").write_bytes(fitted.to_bytes())
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job.prepare(model, optimizer)
    for batch in job.loader(DATA, batch_size=50, collate_fn=lambda r: default_convert(fitted(r))):
        optimizer.zero_grad()
        model(batch["x"].unsqueeze(1)).pow(2).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()

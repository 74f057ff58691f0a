"""The counting model with preprocessing, whose pass over the data stops at a record until a file
exists. Arguments as for ``counting_model.py``."""

import importlib.util
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from torch_edl.preprocessing import Columns, column

_spec = importlib.util.spec_from_file_location(
    "counting_model", Path(__file__).with_name("counting_model.py")
)
assert _spec is not None
assert _spec.loader is not None
counting = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(counting)

model, loss, optimizer = counting.model, counting.loss, counting.optimizer


def parse(records: pa.Table) -> pa.Table:
    numbers = records["n"]
    while pc.any(pc.equal(numbers, counting.LAST)).as_py() and not counting.GATE.exists():
        time.sleep(0.01)
    words = pc.cast(pc.bit_wise_and(numbers, 63), pa.string())
    return pa.table({"word": words, "x": pc.divide(pc.cast(numbers, pa.float64()), 7)})


def columns(parse=parse):
    return Columns(
        parse,
        ids=[column("word").vocabulary(40), column("x").bucketize(quantiles=5)],
        dense=column("x").log().normalize(),
    )


preprocessing = columns()


def feed(records, mode, metadata):
    assert preprocessing(records)["ids"].shape == (len(records), 2)
    return counting.feed(records, mode, metadata)

"""The counting model whose data raise an error as long as there is a file named like the gate, with
the suffix .bad."""

from tests.faults.counting_model import (  # noqa: F401
    BAD,
    eval_metrics_fn,
    loss,
    model,
    optimizer,
)
from tests.faults.counting_model import feed as feed_numbers


def feed(records, mode, metadata):
    fed = feed_numbers(records, mode, metadata)  # may wait until the records are bad
    if BAD.exists():
        raise RuntimeError("these records are bad")
    return fed

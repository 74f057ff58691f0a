"""The model of ``examples/counting``, in which one record ends the process that computes it.

Arguments: the record, the kind of the poison, and where: ``feed``, ``forward`` or ``dataset``.
"""

import ctypes
import importlib.util
import os
import signal
import sys
from pathlib import Path

from torch.utils.data import Dataset

_EXAMPLE = Path(__file__).parents[2] / "examples" / "counting" / "model.py"
RECORD, KIND, WHERE = int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)

_spec = importlib.util.spec_from_file_location("counting_example", _EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
counting = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(counting)


class Interrupted(BaseException):
    """Like asyncio.CancelledError, or a panic of a Rust extension: no Exception."""


def swallow(numbers, where):
    if where != WHERE or RECORD not in numbers:
        return
    match KIND:
        case "memory":  # what the kernel does when memory is short
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case "exception":
            raise ValueError(f"{RECORD} is poison")
        case "base":
            raise Interrupted(RECORD)


class Count(counting.Count):
    def forward(self, numbers):
        swallow(numbers.tolist(), "forward")
        return super().forward(numbers)


class Numbers(Dataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        swallow([self.numbers[index].item()], "dataset")
        return self.numbers[index], self.numbers[index]


counting.Count = Count
model, loss, optimizer = counting.model, counting.loss, counting.optimizer


def feed(records, mode, metadata):
    numbers, labels = counting.feed(records, mode, metadata)
    swallow(numbers.tolist(), "feed")
    return Numbers(numbers) if WHERE == "dataset" else (numbers, labels)

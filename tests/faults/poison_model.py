"""The model of ``examples/counting``, in which one record is poison, see ``poison.py``."""

import importlib.util
from pathlib import Path

from poison import WHERE, swallow
from torch.utils.data import Dataset

_EXAMPLE = Path(__file__).parents[2] / "examples" / "counting" / "model.py"
_spec = importlib.util.spec_from_file_location("counting_example", _EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
counting = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(counting)


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
